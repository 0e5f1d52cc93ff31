"""Client-level differential privacy for any algorithm: clipping, Gaussian noise and what they guarantee."""

from flstudy.privacy.accountant import Accountant, Sample
from flstudy.privacy.mechanism import Clipped, clipped, draws, moved, noisy_mean, split
from flstudy.privacy.privacy import AdaptiveClip, Privacy
