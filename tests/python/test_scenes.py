"""The scenes of docs/shell.md are those that the shell shows."""

import unittest

import scenes


class Scenes(unittest.TestCase):
    def test_scenes_are_current(self):
        for name, (known, text) in scenes.differences().items():
            with self.subTest(name):
                self.assertEqual(known, text, "run cargo xtask scenes")


if __name__ == "__main__":
    unittest.main()
