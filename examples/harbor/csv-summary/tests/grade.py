import json

with open("/opt/expected.json") as file:
    expected = json.load(file)
try:
    with open("/app/summary.json") as file:
        print(int(json.load(file) == expected))
except (OSError, ValueError):
    print(0)
