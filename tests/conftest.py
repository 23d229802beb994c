"""What holds for all tests."""

import signal

# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that: tests that press it
# would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
