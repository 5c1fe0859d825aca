import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { onTestFinished } from 'vitest';

/** Files of a small Harbor task, by path. */
export const HARBOR_FILES: Readonly<Record<string, string>> = {
  'task.toml': 'schema_version = "1.4"\n[task]\nname = "floe/greeting"\n',
  'instruction.md': 'Write hello to greeting.txt.\n',
  'environment/Dockerfile': 'FROM base\n',
  'tests/test.sh':
    'grep -qx hello greeting.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n',
  'solution/solve.sh': 'echo hello > greeting.txt\n',
};

/** Files of a small Terminal-Bench task, by path. */
export const TERMINAL_BENCH_FILES: Readonly<Record<string, string>> = {
  'task.yaml': 'instruction: |-\n  Write hello.\ndifficulty: easy\nparser_name: pytest\nmax_agent_timeout_sec: 90\n',
  Dockerfile: 'FROM base\n',
  'run-tests.sh': 'pytest -rA $TEST_DIR/test_outputs.py\n',
  'tests/test_outputs.py': '',
  'solution.sh': 'echo hello\n',
};

/** Writes files to a new folder, which is removed after the running test. A file with the content `null` is left out. */
export function folderWith(files: Readonly<Record<string, string | null>>): string {
  const folder = mkdtempSync(join(tmpdir(), 'floe-harbor-'));
  // A hook of this module would run only in the first test file of a worker, because the files of a worker share their modules.
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  for (const [path, content] of Object.entries(files)) {
    if (content === null) continue;
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), content);
  }
  return folder;
}
