"""A site on which meeting rooms are booked. Its data is the SQLite file rooms.db beside this program."""

import html
import os
import sqlite3
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

DATABASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rooms.db")
ROOMS = [("Attic", 4, "projector"), ("Lake", 8, "projector"), ("Forest", 6, "none"), ("Hall", 40, "projector")]
HOURS = [f"{hour}:00" for hour in range(9, 17)]

PAGE = """<!doctype html><title>{title}</title><style>
body {{ font: 20px sans-serif; margin: 20px }}
form > * {{ position: absolute; width: 200px; height: 40px; font-size: 20px }}
#room {{ left: 20px; top: 400px }} #name {{ left: 240px; top: 400px }}
#hour {{ left: 460px; top: 400px }} #book {{ left: 680px; top: 400px }}
</style><h1>{title}</h1>{body}"""


def form():
    rows = "".join(f"<tr><td>{name}<td>{seats} seats<td>projector: {screen}" for name, seats, screen in ROOMS)
    rooms = "".join(f"<option>{name}" for name, _, _ in ROOMS)
    hours = "".join(f"<option>{hour}" for hour in HOURS)
    return (
        f"<table>{rows}</table><form method=post action=/book>"
        f"<select id=room name=room aria-label=Room>{rooms}</select>"
        "<input id=name name=name placeholder=Name aria-label=Name required>"
        f"<select id=hour name=hour aria-label=Hour>{hours}</select>"
        "<button id=book>Book</button></form>"
    )


class Site(BaseHTTPRequestHandler):
    def reply(self, title, body):
        data = PAGE.format(title=title, body=body).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply("Rooms", form())

    def do_POST(self):
        fields = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        room, name, hour = (fields.get(key, [""])[0] for key in ("room", "name", "hour"))
        if room not in [room for room, _, _ in ROOMS] or hour not in HOURS or not name:
            self.reply("Not booked", "<p>Something is missing.</p><a href=/>Back</a>")
            return
        with sqlite3.connect(DATABASE) as database:
            database.execute("INSERT INTO bookings VALUES (?, ?, ?)", (room, name, hour))
        self.reply("Booked", f"<p>{html.escape(f'{room} at {hour} for {name}')}</p><a href=/>Back</a>")

    def log_message(self, *_):
        pass


with sqlite3.connect(DATABASE) as database:
    database.execute("CREATE TABLE IF NOT EXISTS bookings (room TEXT, name TEXT, hour TEXT)")
HTTPServer(("127.0.0.1", 8037), Site).serve_forever()
