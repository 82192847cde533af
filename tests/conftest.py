"""What all tests share: derandomised hypothesis, and the root of the project."""

from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent

settings.register_profile(
    "cbeindex", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cbeindex")
