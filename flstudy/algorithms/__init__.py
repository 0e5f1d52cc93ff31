"""Federated optimizers, one short file per method. Imports torch and its own room only."""

from flstudy.algorithms.adaptivefedavg import AdaptiveFedAvg
from flstudy.algorithms.apfl import Apfl
from flstudy.algorithms.cfl import Cfl
from flstudy.algorithms.continuous import Continuous
from flstudy.algorithms.directjointadaptivity import DirectJointAdaptivity
from flstudy.algorithms.ditto import Ditto
from flstudy.algorithms.fedacg import FedAcg
from flstudy.algorithms.fedada2 import FedAda2
from flstudy.algorithms.fedadagrad import FedAdaGrad
from flstudy.algorithms.fedadam import FedAdam
from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.fedavgm import FedAvgM
from flstudy.algorithms.fedbabu import FedBabu
from flstudy.algorithms.fedblended import FedBlended, Strategy
from flstudy.algorithms.feddc import FedDC
from flstudy.algorithms.feddrift import FedDrift
from flstudy.algorithms.feddrifteager import FedDriftEager
from flstudy.algorithms.feddyn import FedDyn
from flstudy.algorithms.fedexp import FedExp
from flstudy.algorithms.fednova import FedNova
from flstudy.algorithms.fedomd import FedOmd
from flstudy.algorithms.fedopt import FedOpt
from flstudy.algorithms.fedprox import FedProx
from flstudy.algorithms.fedrep import FedRep
from flstudy.algorithms.fedsam import FedSam
from flstudy.algorithms.fedvarp import FedVarp
from flstudy.algorithms.fedyogi import FedYogi
from flstudy.algorithms.flash import Flash
from flstudy.algorithms.hypcluster import HypCluster
from flstudy.algorithms.jointadaptivity import JointAdaptivity
from flstudy.algorithms.lgfedavg import LgFedAvg
from flstudy.algorithms.localonly import LocalOnly
from flstudy.algorithms.mifa import Mifa
from flstudy.algorithms.mime import Mime
from flstudy.algorithms.mimelite import MimeLite
from flstudy.algorithms.moon import Moon
from flstudy.algorithms.oracle import Oracle
from flstudy.algorithms.parts.algorithm import Algorithm, device_memory
from flstudy.algorithms.parts.draws import fold_in, normal, uniform
from flstudy.algorithms.parts.signatures import Batch, Inbox, Job, Layout, Local, Message, Round, Rule, Upload
from flstudy.algorithms.scaffold import Scaffold
from flstudy.registry import import_modules

import_modules(__name__, __path__)  # a method that is not listed above can be named in configs, too
