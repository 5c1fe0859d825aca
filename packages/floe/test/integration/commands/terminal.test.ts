import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { ProgressRate } from '../../../src/commands/progress-rate.ts';
import { startTestService, type TestService } from '../../../src/testing/index.ts';

const CLI = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
const OPEN = '\u001b[?1049h';
const CLOSE = '\u001b[?7h\u001b[?25h\u001b[?1049l';
/** Text that the agent writes to its standard error: a title of the window, a bell, and text from right to left. */
const HOSTILE = String.raw`\033]0;owned\007\342\200\256`;

const missing = existsSync('/usr/bin/script') ? null : 'there is no /usr/bin/script: install util-linux';

let gates = 0;

/** A command of floe in a pseudo-terminal of 80 columns and 24 rows. */
class Terminal {
  output = '';
  private readonly child: ChildProcess;
  private readonly waiting = new Set<() => void>();

  constructor(command: string, env: NodeJS.ProcessEnv) {
    const inside = `tty; stty cols 80 rows 24; exec node ${CLI} ${command}`;
    this.child = spawn('script', ['-qec', inside, '/dev/null'], { env, stdio: ['pipe', 'pipe', 'inherit'] });
    this.child.stdout?.on('data', (bytes: Buffer) => {
      this.output += bytes.toString();
      for (const check of this.waiting) check();
    });
  }

  /** Resolves when the output contains a text. */
  async shows(text: string | RegExp): Promise<void> {
    await new Promise<void>((resolve) => {
      const check = (): void => {
        if (typeof text === 'string' ? !this.output.includes(text) : !text.test(this.output)) return;
        this.waiting.delete(check);
        resolve();
      };
      this.waiting.add(check);
      check();
    });
  }

  resize(rows: number, columns: number): void {
    const [device = ''] = /\/dev\/pts\/\d+/.exec(this.output) ?? [];
    execFileSync('stty', ['-F', device, 'rows', String(rows), 'cols', String(columns)]);
  }

  type(keys: string): void {
    this.child.stdin?.write(keys);
  }

  async exit(): Promise<number | null> {
    const [code] = (await once(this.child, 'exit')) as [number | null];
    return code;
  }

  /** The pictures that were drawn, as lines. */
  frames(): string[][] {
    return this.output
      .split('\u001b[?2026h\u001b[H')
      .slice(1)
      .map((frame) => (frame.split('\u001b[?2026l')[0] ?? '').split('\r\n'));
  }
}

describeIf(missing, 'a command in a terminal', () => {
  let service: TestService;
  let dir: string;
  let env: NodeJS.ProcessEnv;
  beforeAll(async () => {
    service = await startTestService();
    dir = mkdtempSync(join(tmpdir(), 'floe-terminal-'));
    env = {
      ...process.env,
      FLOE_URL: service.url,
      FLOE_TOKEN: '',
      FLOE_HOME: dir,
      TERM: 'xterm-256color',
      LANG: 'C.UTF-8',
    };
  });
  afterAll(async () => {
    await service.close();
    rmSync(dir, { recursive: true, force: true });
  });

  /** Submits a task whose agents run until {@link finish} is called. */
  async function submit(samples: number, last = 'true'): Promise<{ id: string; finish: () => void }> {
    const gate = join(dir, `gate-${gates++}`);
    const wait = `while [ ! -e '${gate}' ]; do sleep 0.05; done; ${last}`;
    const agent = { harness: 'shell', custom_shell: wait };
    const { task_id: id } = await service.client.submit({
      instruction: '',
      num_samples: samples,
      agent,
      max_attempts: 1,
    });
    return { id, finish: () => writeFileSync(gate, '') };
  }

  it('shows the stages of a task, then restores the terminal and prints the sessions', async () => {
    const { id, finish } = await submit(3);
    const terminal = new Terminal(`watch ${id}`, env);
    await terminal.shows(/RUNNING +3/);
    expect(terminal.output).not.toContain(CLOSE);
    finish();
    await terminal.shows(CLOSE);
    expect(await terminal.exit()).toBe(1);
    const [screen = '', after = ''] = terminal.output.split(CLOSE);
    expect(screen).toContain(OPEN);
    expect(screen).toContain('0 of 3 sessions ended');
    expect(after.match(/no_completions/g)?.length).toBeGreaterThanOrEqual(3);
    // Erasing the window before each picture would flicker.
    expect(screen).not.toContain('\u001b[2J');
  });

  it('fits each picture into the window, also after the window was made smaller', async () => {
    const { id, finish } = await submit(40);
    const terminal = new Terminal(`watch ${id}`, env);
    await terminal.shows(/RUNNING +[1-9]/);
    const before = terminal.frames().length;
    terminal.resize(9, 40);
    await terminal.shows(/\d+ more lines in a taller window/);
    const [tall, small] = [terminal.frames().slice(0, before), terminal.frames().slice(before)];
    expect(Math.max(...tall.map((lines) => lines.length))).toBeLessThanOrEqual(24);
    expect(small.map((lines) => lines.length)).toContain(9);
    terminal.type('\u0003');
    expect(await terminal.exit()).toBe(130);
    expect(terminal.output).toContain(CLOSE);
    expect(terminal.output).toContain(`The task continues; show it with floe watch ${id}`);
    finish();
  });

  it('shows what an agent wrote without what the terminal would interpret', async () => {
    const { id, finish } = await submit(2, `printf '${HOSTILE}' >&2; exit 3`);
    const terminal = new Terminal(`watch ${id}`, env);
    await terminal.shows(/RUNNING +2/);
    finish();
    await terminal.exit();
    expect(terminal.output).toContain('␛]0;owned␇\\u{202e}');
    for (const raw of ['\u001b]0', '\u0007', '\u202e']) expect(terminal.output).not.toContain(raw);
  });

  it('shows the status until Ctrl-C, and reports while the server does not answer', async () => {
    const other = await startTestService();
    const terminal = new Terminal('status --live', { ...env, FLOE_URL: other.url });
    await terminal.shows(/QUEUED 0 .* ended 0/);
    await terminal.shows('bottleneck');
    await other.close();
    await terminal.shows('out of date: ');
    terminal.type('\u0003');
    expect(await terminal.exit()).toBe(130);
    expect(terminal.output).toContain(CLOSE);
  });

  it('prints the live status as lines where the output is no terminal', async () => {
    const child = spawn(process.execPath, [CLI, 'status', '--live'], { env, stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    child.stdout.on('data', (bytes: Buffer) => {
      text += bytes.toString();
      if (text.split('\n').length > 2) child.kill('SIGINT');
    });
    const [code] = await once(child, 'exit');
    expect(code).toBe(130);
    expect(text).toMatch(/^\d\d:\d\d:\d\d {2}QUEUED 0 .*\n\d\d:\d\d:\d\d/);
    expect(text).not.toContain('\u001b');
  });
});

describe('the rate of a progress', () => {
  it('is that of the last minute, and starts over when the value becomes smaller', () => {
    const rate = new ProgressRate();
    expect(rate.perSecond()).toBeNull();
    expect(rate.msUntil(3)).toBeNull();
    for (let second = 0; second <= 100; second++) rate.add(second * 1000, Math.max(0, second - 40) * 2);
    expect(rate.perSecond()).toBeCloseTo(2, 1);
    expect(rate.msUntil(20)).toBeCloseTo(10_000, -3);
    rate.add(101_000, 5);
    expect(rate.perSecond()).toBeNull();
    expect(rate.msUntil(0)).toBe(0);
  });
});
