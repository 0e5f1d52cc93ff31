#!/usr/bin/env python
"""Make the bucket for MLflow's artifacts, unless it is there: `make_bucket.py NAME`.

Where and as whom is read from the environment, as MLflow does: MLFLOW_S3_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION.
"""

import os
import sys

import boto3
from botocore.exceptions import ClientError


def make(name: str) -> str:
    """What was done, in a sentence."""
    s3 = boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL"))
    try:
        s3.head_bucket(Bucket=name)
        return f"bucket {name!r} is there"
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:  # such as 403: the keys are wrong
            raise
    s3.create_bucket(Bucket=name)
    return f"bucket {name!r} made"


if __name__ == "__main__":
    print(make(sys.argv[1]))
