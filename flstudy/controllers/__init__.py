"""Controllers: hooks around a round, with explicit state, for any algorithm; and schedules of its learning rate."""

from flstudy.controllers.controller import Controller, Detector, Moment, ProbeRounds
from flstudy.controllers.initial_model import Average, DynamicInitialModel
from flstudy.controllers.instances import BlockSchedule, Instance, Rate, running_instance
from flstudy.controllers.masterfl import MasterFL
from flstudy.controllers.restart import Restart
from flstudy.controllers.schedule import Cosine, Polynomial, Schedule
