from tests.support import X


def test_x():
    assert X == 1
