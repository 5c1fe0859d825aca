"""Prints the actions that win episodes of an environment of gem, as JSON: `gem_answers.py ID ATTRIBUTE SEED…`."""

import json
import sys

import gem

_, name, attribute, *seeds = sys.argv
answers = []
for seed in seeds:
    env = gem.make(name)
    env.reset(seed=int(seed))
    value = getattr(env, attribute)
    answers.append(str(value["answer"] if isinstance(value, dict) else value))
print(json.dumps(answers))
