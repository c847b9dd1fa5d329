"""All processes of these tests take polyrail for Mooncake's engine."""

import os

os.environ["POLYRAIL_AS_MOONCAKE"] = "1"
