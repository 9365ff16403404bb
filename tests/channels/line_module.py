"""What the gateway loads as the channel `line`. The objects of the test are in `line`."""

from tests.channels.line import channel as channel
