import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { SessionResult } from '@floe-rl/core/schema';
import { repositoryRoot } from '../../tools/repository.ts';
import { freePort } from '../services/ports.ts';
import type { Finding } from './finding.ts';

/** Guides that are run. The other ones take longer, and tests run agents such as theirs. */
const GUIDES = ['write-an-environment', 'write-a-tool', 'from-prorl', 'from-skyrl-agent'];
const OTHER_GUIDES = ['write-an-agent', 'from-roll'];
/** Input for commands that read the terminal. */
const INPUT = 'add 2\nadd 2\nadd 1\n';
/** Ports of servers in the guides, by the commands that start these. */
const PORTS = { up: 8080, sim: 8090 } as const;
/** Time in milliseconds that a task of a guide may take. */
const SUBMIT_MS = 60_000;
/** Variable that only agents with a mailbox have. A command that uses it is that of an agent. */
const MAILBOX = '$FLOE_MAILBOX';

/**
 * Runs each guide as it is written, except that `npm install` finds floe in this checkout, because the package is on no registry, and that
 * servers have free ports and run until the guide has ended. Code that begins with the name of a file is that file. The last YAML and JSON are
 * the config file of a node and a task for it. `isQuick` leaves out some.
 */
export async function runGuides(isQuick: boolean): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const name of isQuick ? GUIDES : [...GUIDES, ...OTHER_GUIDES]) {
    const dir = mkdtempSync(join(tmpdir(), 'floe-guide-'));
    const guide = new Guide(readFileSync(join(repositoryRoot(), 'docs', 'guides', `${name}.md`), 'utf8'), dir);
    try {
      findings.push({ what: `guide ${name}`, isPassed: true, detail: await guide.run() });
    } catch (error) {
      findings.push({ what: `guide ${name}`, isPassed: false, detail: (error as Error).message });
    } finally {
      await guide.close();
      rmSync(dir, { recursive: true, force: true });
    }
  }
  return findings;
}

class Guide {
  private readonly text: string;
  private readonly dir: string;
  private readonly env: NodeJS.ProcessEnv;
  private readonly servers: ChildProcess[] = [];
  /** Free ports in place of those of the guide, by the commands that start the servers. */
  private readonly ports = new Map<keyof typeof PORTS, number>();

  constructor(text: string, dir: string) {
    this.text = text;
    this.dir = dir;
    this.env = environmentFor(dir);
  }

  /** Runs the commands, and the task if there is one. Resolves with what was run. */
  async run(): Promise<string> {
    const { dir, text } = this;
    for (const block of ['js', 'py', 'yaml'].flatMap((language) => blocksOf(text, language))) {
      const [, name] = /^(?:\/\/|#) ([a-z0-9-]+\.[a-z]+)\b/.exec(block) ?? [];
      if (name !== undefined) writeFileSync(join(dir, name), block);
    }
    const blocks = blocksOf(text, 'sh');
    const commands = blocks.filter((block) => !block.includes(MAILBOX)).join('');
    await this.runCommands(commands.replaceAll('npm install', 'true'));
    const [config, task] = [blocksOf(text, 'yaml').at(-1), blocksOf(text, 'json').at(-1)];
    const outcomes = config === undefined || task === undefined ? [] : await this.runTasks(config, task, blocks);
    const count = commands.trim().split('\n').length;
    return `${count} lines of commands${outcomes.length === 0 ? '' : `, outcomes ${outcomes.join(', ')}`}`;
  }

  /** Ends the servers. */
  async close(): Promise<void> {
    for (const server of this.servers.splice(0)) {
      if (server.exitCode !== null) continue;
      server.kill('SIGTERM');
      await once(server, 'exit');
    }
  }

  /** Runs the commands in their order, those before a server and those after it in one shell each. */
  private async runCommands(commands: string): Promise<void> {
    let waiting: string[] = [];
    const runWaiting = (): void => {
      const script = waiting.join('\n');
      waiting = [];
      if (script.trim() !== '') run('bash', ['-euc', this.withPorts(script)], this.dir, this.env);
    };
    for (const line of commands.split('\n')) {
      const [, server] = /^floe (up|sim)\b/.exec(line) ?? [];
      if (server !== 'up' && server !== 'sim') {
        waiting.push(line);
        continue;
      }
      runWaiting();
      const words = line
        .replace(/#.*/, '')
        .replace(/--port \d+/, '')
        .trim()
        .split(/\s+/);
      await this.start(server, words.slice(2));
    }
    runWaiting();
  }

  /** Submits the task of the guide to its server, or to one with its config file, and the agents with a mailbox. Returns the outcomes. */
  private async runTasks(config: string, task: string, commands: readonly string[]): Promise<string[]> {
    writeFileSync(join(this.dir, 'floe.yaml'), config);
    writeFileSync(join(this.dir, 'task.json'), task);
    if (!this.ports.has('up')) await this.start('up', ['--sim', '--config', 'floe.yaml']);
    const agents = commands.filter((command) => command.includes(MAILBOX));
    for (const [index, command] of agents.entries()) {
      const agent = { harness: 'shell', custom_shell: command, settings: { mailbox: true } };
      writeFileSync(join(this.dir, `agent-${index}.json`), JSON.stringify({ instruction: '', agent }));
    }
    for (const file of ['task.json', ...agents.map((_, index) => `agent-${index}.json`)]) {
      // The status is 1 when the simulated policy, which knows nothing of the guide, uses up its turns.
      spawnSync('floe', ['submit', file, '--watch'], { cwd: this.dir, env: this.env, timeout: SUBMIT_MS });
    }
    const results = run('floe', ['results', '--json'], this.dir, this.env).trim().split('\n');
    const outcomes = results.map((line) => (JSON.parse(line) as SessionResult).outcome);
    const wrong = outcomes.find((outcome) => !/^(completed|truncated_turns|agent_error)$/.test(outcome));
    if (wrong !== undefined) throw new Error(`a task of the guide ended as ${wrong}`);
    if (outcomes.length <= agents.length) throw new Error('a task of the guide has no result');
    return [...new Set(outcomes)];
  }

  private async start(server: keyof typeof PORTS, words: readonly string[]): Promise<void> {
    const port = await freePort();
    const level = server === 'up' ? ['--log-level', 'warn'] : [];
    const child = spawn('floe', [server, ...words, '--port', String(port), ...level], {
      cwd: this.dir,
      env: this.env,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.servers.push(child);
    await started(child, server === 'up' ? 'Submit a task' : 'simulated engine:');
    this.ports.set(server, port);
    if (server === 'up') this.env.FLOE_URL = `http://127.0.0.1:${port}`;
  }

  private withPorts(script: string): string {
    const replace = (text: string, [server, port]: readonly [keyof typeof PORTS, number]): string =>
      text.replaceAll(`127.0.0.1:${PORTS[server]}`, `127.0.0.1:${port}`);
    return [...this.ports].reduce(replace, script);
  }
}

/** Returns the code blocks of a language. */
function blocksOf(guide: string, language: string): string[] {
  return [...guide.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, 'gms'))].map(([, block = '']) => block);
}

/** Makes a program `floe` of this checkout, and the packages floe and zod for modules in the folder. */
function environmentFor(dir: string): NodeJS.ProcessEnv {
  const bin = join(dir, 'bin');
  const modules = join(dir, 'node_modules');
  mkdirSync(bin);
  mkdirSync(modules);
  symlinkSync(join(repositoryRoot(), 'packages', 'floe'), join(modules, 'floe'));
  symlinkSync(join(repositoryRoot(), 'node_modules', 'zod'), join(modules, 'zod'));
  const main = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
  writeFileSync(join(bin, 'floe'), `#!/bin/sh\nexec '${process.execPath}' '${main}' "$@"\n`);
  chmodSync(join(bin, 'floe'), 0o755);
  return {
    ...process.env,
    PATH: `${bin}:${process.env.PATH}`,
    HOME: dir,
    FLOE_HOME: join(dir, '.floe'),
    NO_COLOR: '1',
  };
}

function run(program: string, args: readonly string[], cwd: string, env: NodeJS.ProcessEnv): string {
  const { status, stdout, stderr } = spawnSync(program, args, { cwd, env, input: INPUT, encoding: 'utf8' });
  if (status !== 0)
    throw new Error(`${program} ${args.join(' ').slice(0, 60)} ended with ${status}: ${stdout}${stderr}`);
  return stdout;
}

/** Resolves when a server has printed a line that begins with `text`. Rejects when it ends before. */
async function started(server: ChildProcess, text: string): Promise<void> {
  if (server.stdout === null) throw new Error('the server has no output');
  for await (const line of createInterface({ input: server.stdout })) {
    if (line.startsWith(text)) {
      server.stdout.resume();
      return;
    }
  }
  throw new Error(`the server ended before it printed "${text}"`);
}
