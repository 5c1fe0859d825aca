import type { SandboxFile } from '@floe-rl/sandbox';

/*
 * Clients of the mailbox. An agent in a sandbox without any network calls its model through it. The agent writes `requests/NAME.json`. The
 * node answers with `replies/NAME.json` or, for a call that failed, with `replies/NAME.error.json`. Several requests may wait at once.
 * `SESSION_END` exists when no more are answered.
 */

/** Sends the request on stdin, and prints the reply. Exit code 1: the call failed (error on stderr); 2: the session has ended. */
const SHELL_CLIENT = `#!/bin/sh
box=\${FLOE_MAILBOX:?is not set}
name=sh-$$-$(date +%s%N | tr -cd 0-9)
cat >"$box/requests/$name.part" && mv "$box/requests/$name.part" "$box/requests/$name.json" || exit 1
while :; do
  if [ -f "$box/replies/$name.json" ]; then
    cat "$box/replies/$name.json"
    rm -f "$box/replies/$name.json"
    exit 0
  fi
  if [ -f "$box/replies/$name.error.json" ]; then
    cat "$box/replies/$name.error.json" >&2
    rm -f "$box/replies/$name.error.json"
    exit 1
  fi
  if [ -e "$box/SESSION_END" ]; then
    echo 'the session has ended' >&2
    exit 2
  fi
  sleep 0.05 2>/dev/null || sleep 1
done
`;

/** Exports \`chat\`; as a program, like the shell client. */
const NODE_CLIENT = `import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { randomUUID } from 'node:crypto';
import { pathToFileURL } from 'node:url';

const pause = () => new Promise((resolve) => setTimeout(resolve, 20));

/** Sends the body of a chat completion request, and resolves with the reply. Rejects with an Error that has \`status\` and \`code\`. */
export async function chat(body, box = process.env.FLOE_MAILBOX) {
  const name = 'js-' + randomUUID();
  writeFileSync(box + '/requests/' + name + '.part', JSON.stringify(body));
  renameSync(box + '/requests/' + name + '.part', box + '/requests/' + name + '.json');
  for (;;) {
    for (const suffix of ['.json', '.error.json']) {
      const path = box + '/replies/' + name + suffix;
      if (!existsSync(path)) continue;
      const reply = JSON.parse(readFileSync(path, 'utf8'));
      rmSync(path);
      if (suffix === '.json') return reply;
      throw Object.assign(new Error(reply.error.message), { status: reply.status, code: reply.error.code });
    }
    if (existsSync(box + '/SESSION_END')) throw Object.assign(new Error('the session has ended'), { status: 410 });
    await pause();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  try {
    process.stdout.write(JSON.stringify(await chat(JSON.parse(readFileSync(0, 'utf8')))) + '\\n');
  } catch (error) {
    process.stderr.write(error.message + '\\n');
    process.exitCode = error.status === 410 ? 2 : 1;
  }
}
`;

/** Has the function \`chat\`; as a program, like the shell client. */
const PYTHON_CLIENT = `import json
import os
import sys
import time
import uuid


class MailboxError(Exception):
    """A call that failed, with the status and the code that it would have over HTTP."""

    def __init__(self, message, status, code=None):
        super().__init__(message)
        self.status = status
        self.code = code


def chat(body, box=None):
    """Sends the body of a chat completion request, and returns the reply."""
    box = box or os.environ["FLOE_MAILBOX"]
    name = "py-" + uuid.uuid4().hex
    path = os.path.join(box, "requests", name)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(body, file)
    os.rename(path + ".part", path + ".json")
    answer = os.path.join(box, "replies", name)
    while True:
        for suffix in (".json", ".error.json"):
            if not os.path.exists(answer + suffix):
                continue
            with open(answer + suffix, encoding="utf-8") as file:
                reply = json.load(file)
            os.remove(answer + suffix)
            if suffix == ".json":
                return reply
            raise MailboxError(reply["error"]["message"], reply["status"], reply["error"].get("code"))
        if os.path.exists(os.path.join(box, "SESSION_END")):
            raise MailboxError("the session has ended", 410)
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        print(json.dumps(chat(json.load(sys.stdin))))
    except MailboxError as error:
        print(error, file=sys.stderr)
        sys.exit(2 if error.status == 410 else 1)
`;

/** Returns the clients as files of a mailbox. */
export function mailboxClients(mailbox: string): SandboxFile[] {
  return [
    { path: `${mailbox}/call.sh`, content: SHELL_CLIENT, mode: 0o755 },
    { path: `${mailbox}/call.mjs`, content: NODE_CLIENT },
    { path: `${mailbox}/call.py`, content: PYTHON_CLIENT },
  ];
}
