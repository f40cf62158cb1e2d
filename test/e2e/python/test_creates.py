"""A few of the lives that `make soak-creates` has thousands of."""

import concurrent.futures
import sys

import world

sys.path.insert(0, str(world.ROOT / "test" / "life"))
import creates  # noqa: E402


def test_short_lives_two_at_a_time():
    with concurrent.futures.ThreadPoolExecutor(creates.AT_ONCE) as pool:
        for done in [pool.submit(creates.life) for _ in range(12)]:
            done.result()
