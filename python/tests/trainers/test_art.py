"""The adapter of ART with its Trajectory and TrajectoryGroup."""

from __future__ import annotations

import unittest

from floe import Client
from tests.trainers.served import Floe, adapter, records

art, REASON = adapter("art")


@unittest.skipIf(art is None, REASON)
class ArtTest(unittest.TestCase):
    def test_yields_the_groups_of_a_stream(self) -> None:
        from art import TrajectoryGroup

        assert art is not None
        given = [(row, records("art", group=row)) for row in (0, 1)]
        with Floe(given) as floe, Client(floe.url) as client:
            found = list(art.trajectory_groups(client, "b", policy_version=lambda: 7))
            self.assertTrue(all(call.query["format"] == "art" for call in floe.requested))
        self.assertEqual([len(batch.groups) for batch in found], [1, 1])
        for batch in found:
            (group,) = batch.groups
            self.assertIsInstance(group, TrajectoryGroup)
            self.assertEqual([trajectory.reward for trajectory in group], [0, 1, 0])

    def test_makes_a_group_of_the_samples_of_a_task(self) -> None:
        assert art is not None
        groups = art.grouped(records("art"))
        ids = [[trajectory.metadata["session_id"] for trajectory in group] for group in groups]
        self.assertEqual(ids, [[f"session-{task}-{sample}" for sample in range(3)] for task in range(2)])

    def test_makes_choices_that_art_trains_of_all_traces(self) -> None:
        from openai.types.chat.chat_completion import Choice

        assert art is not None
        first, _, masked = [art.trajectory(record) for record in records("art", case="several", group=0)]
        histories = [first.messages_and_choices, *[history.messages_and_choices for history in first.additional_histories]]
        self.assertEqual([len(choices) for choices in histories], [2, 2])
        self.assertTrue(all(isinstance(choice, Choice) for choices in histories for choice in choices))
        self.assertEqual(histories[0][1].token_ids, [102, 103])
        self.assertEqual(histories[0][1].compact_logprobs, [-1.5, -0.125])
        self.assertEqual((first.initial_policy_version, first.final_policy_version), (6, 7))
        self.assertEqual(masked.messages_and_choices, [])


if __name__ == "__main__":
    unittest.main()
