"""The claim of one driver to a study in a bucket, where no kernel releases a lock.

`lease.json` names the driver of the study, which writes it anew every `BEAT_S` seconds. The lease is free if its driver
released it, ended on this machine, or did not write it for `SILENT_S` seconds by the store's clock.

Stores have no common way to create a file only where there is none. A driver that wants the lease therefore first
writes a claim, a file that all other drivers see. Of several drivers, the one with the smallest token takes the lease
once the others have withdrawn their claims.

`lease.json` stays when the study ends, since it shows whether another machine has driven the study meanwhile.
"""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Container, Iterator
from dataclasses import asdict

from flstudy.config import ConfigError
from flstudy.remote import RemoteError, RemoteFolder
from flstudy.study.lock import BEAT_S, SILENT_S, Holder, refusal

LEASE, CLAIMS = "lease.json", "claims"
_WAIT_S, _POLL_S = 10.0, 0.2  # for other claims to be withdrawn
_READS = 5  # of a lease that is not whole, before nobody holds it


class Lease:
    """The lease of one study in a bucket.

    Args:
        remote: the study's folder in the bucket.
        former: tokens of earlier leases whose holders have ended, so that they do not refuse this one.
    """

    def __init__(self, remote: RemoteFolder, former: Container[str | None] = ()) -> None:
        self.remote, self.former = remote, former
        self.token = uuid.uuid4().hex

    def last(self) -> tuple[str | None, Holder | None]:
        """Return the token of the latest lease, and its holder if that may still drive the study; (None, None)
        without a lease."""
        return self._read(time.time())

    @contextlib.contextmanager
    def hold(self, study: str) -> Iterator[str | None]:
        """Hold the study; gives the token of its last driver. Where this machine has no connection for long, another
        process may take the study, and `last` tells so.

        Args:
            study: its name.

        Raises:
            ConfigError: where another process holds it, which is named.
            RemoteError: of the bucket.
        """
        before = self._take(study)
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(over,), daemon=True, name="lease")
        beating.start()
        try:
            yield before
        finally:
            over.set()
            beating.join()
            with contextlib.suppress(RemoteError):
                if self.last()[0] in (None, self.token):
                    self._write(released=True)

    def _take(self, study: str) -> str | None:
        """Take the lease; returns the token of its last driver."""
        claims, claim = self.remote.child(CLAIMS), f"{self.token}.json"
        claims.write(claim, json.dumps(asdict(Holder())).encode())
        try:
            until = time.monotonic() + _WAIT_S
            while others := self._claims(claims, claim):
                first = min(others)
                if first < claim or time.monotonic() > until:
                    raise ConfigError(f"study {study} is being started by {others[first]}: wait for its end")
                time.sleep(_POLL_S)
            now = claims.file(claim)
            before, holder = self._read(time.time() if now is None else now.written)
            if holder is not None and before not in self.former:
                raise ConfigError(refusal(study, holder))
            self._write()
            return before
        finally:
            claims.delete(claim)

    @staticmethod
    def _claims(claims: RemoteFolder, claim: str) -> dict[str, Holder]:
        """Return the claims of other processes; those that killed processes have left behind are deleted."""
        files, others = claims.files(), {}
        for name, file in files.items():
            holder = Holder.parse(claims.read(name) or b"")
            if name == claim or holder is None:
                continue
            if is_gone(holder) or (claim in files and files[claim].written - file.written > SILENT_S):
                claims.delete(name)
            else:
                others[name] = holder
        return others

    def _read(self, now: float) -> tuple[str | None, Holder | None]:
        """Return the token and the holder of the lease, as `last` does.

        A lease of which the store shows only a part, since its holder is writing it, is read again.

        Args:
            now: time by the store's clock, in seconds since 1970.
        """
        for _ in range(_READS):
            file, content = self.remote.file(LEASE), self.remote.read(LEASE)
            if file is None:
                break
            try:
                lease = json.loads(content or b"")
                token, released = str(lease["token"]), bool(lease["released"])
                holder = Holder.parse(json.dumps(lease["holder"]).encode())
            except (ValueError, TypeError, KeyError):
                time.sleep(_POLL_S)
                continue
            over = released or holder is None or is_gone(holder) or now - file.written > SILENT_S
            return token, None if over else holder
        return None, None

    def _write(self, *, released: bool = False) -> None:
        lease = {"token": self.token, "released": released, "holder": asdict(Holder())}
        self.remote.write(LEASE, json.dumps(lease).encode())

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(BEAT_S):
            with contextlib.suppress(RemoteError):
                if self.last()[0] not in (None, self.token):
                    return
                self._write()


def is_gone(holder: Holder) -> bool:
    """Return whether a process of this machine has ended; False for other machines, where it cannot be known."""
    me = Holder()
    return (holder.boot, holder.host) == (me.boot, me.host) and not holder.lives
