"""An environment in the form of Gymnasium: a treasure is in one of several rooms in a row."""

import random


class Doors:
    def __init__(self, rooms=5, max_steps=8):
        self.rooms = rooms
        self.max_steps = max_steps

    def reset(self, seed=None):
        draw = random.Random(seed)
        self.room = 0
        self.treasure = draw.randrange(1, self.rooms)
        self.steps = 0
        rules = "Walk with `left` and `right`, and take the treasure with `take`."
        return self.view(), {"env_instruction": rules, "state_hash": self.state()}

    def step(self, action):
        self.steps += 1
        action = action.strip().lower()
        if action == "take":
            found = self.room == self.treasure
            return "Taken." if found else "Nothing here.", float(found), True, False, {"success": found}
        moves = {"left": -1, "right": 1}
        if action not in moves:
            view = f"There is no action {action!r}. {self.view()}"
        else:
            self.room = min(max(self.room + moves[action], 0), self.rooms - 1)
            view = self.view()
        return view, 0.0, False, self.steps >= self.max_steps, {"success": False, "state_hash": self.state()}

    def view(self):
        shine = "It shines here." if self.room == self.treasure else "It is dark here."
        return f"Room {self.room} of {self.rooms - 1}. {shine}"

    def state(self):
        return f"{self.room}/{self.treasure}"
