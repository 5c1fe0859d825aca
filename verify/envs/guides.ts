import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { repositoryRoot } from '../../tools/repository.ts';
import { type Block, blocksOf, isShell } from '../pages/blocks.ts';
import { linkCheckout, runPage } from '../pages/page-run.ts';
import { Checks, type Finding } from '../runner/checks.ts';

/** Guides that every run includes. The other guides take longer, and tests run similar agents. */
const GUIDES = ['write-an-environment', 'write-a-tool', 'from-prorl', 'from-skyrl-agent'];
const OTHER_GUIDES = ['write-an-agent', 'from-roll'];
/** Standard input of the guides' commands, which read it like a terminal. */
const INPUT = 'add 2\nadd 2\nadd 1\n';
/**
 * Replacement for the program `npm` in a guide, in which `npm install` does nothing. The package floe is on no registry, so it is linked into
 * the guide's folder instead.
 */
const NPM = `[ "$1" = install ] || exec '${join(process.execPath, '..', 'npm')}' "$@"`;
/** Variable that only agents with a mailbox have. A command that uses it is the command of an agent. */
const MAILBOX = '$FLOE_MAILBOX';
/** Outcomes of a session of the simulated policy, which knows nothing of the guide and may use up its turns. */
const EXPECTED = /^(completed|truncated_turns|agent_error)$/;

/**
 * Runs each guide as it is written, except that `npm install` does nothing. The last YAML block of a guide is the config file of a node, and
 * the last JSON block is a task. The task is run with each agent that has a mailbox. `isQuick` leaves out some guides.
 */
export async function runGuides(isQuick: boolean): Promise<Finding[]> {
  const checks = new Checks(() => {});
  for (const name of isQuick ? GUIDES : [...GUIDES, ...OTHER_GUIDES]) {
    await checks.check(`guide ${name}`, () => runGuide(name));
  }
  return checks.findings;
}

/** Runs a guide and returns what was run. */
async function runGuide(name: string): Promise<string> {
  const page = join('docs', 'guides', `${name}.md`);
  const all = blocksOf(page, readFileSync(join(repositoryRoot(), page), 'utf8'));
  const commands = all.filter(({ language, text }) => isShell(language) && !text.includes(MAILBOX));
  const agents = all.filter(({ language, text }) => isShell(language) && text.includes(MAILBOX));
  const files = all.filter(({ language, file }) => !isShell(language) && file !== null);
  const lastOf = (language: string): Block | undefined => all.findLast((block) => block.language === language);
  const [config, task] = [lastOf('yaml'), lastOf('json')];
  const dir = mkdtempSync(join(tmpdir(), 'floe-guide-'));
  const place = join(dir, 'page');
  try {
    const tasks =
      config === undefined || task === undefined ? [] : taskBlocks(place, { commands, config, task, agents });
    const blocks = [...files, ...[...commands, ...tasks].map((block) => ({ ...block, notRun: null }))];
    const results = await runPage(blocks, {
      ...{ dir, input: INPUT, programs: { npm: NPM }, env: { npm_config_ignore_scripts: 'true' } },
      prepare: linkCheckout,
    });
    const failed = results.find(({ failure }) => failure !== null);
    if (failed !== undefined) throw new Error(`${failed.block.text.trim()} ${failed.failure}`);
    const outcomes = tasks.length === 0 ? [] : readOutcomes(join(place, 'results.jsonl'), agents.length);
    const count = commands.map(({ text }) => text.trim().split('\n').length).reduce((sum, lines) => sum + lines, 0);
    return `${count} lines of commands${outcomes.length === 0 ? '' : `, outcomes ${outcomes.join(', ')}`}`;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

type Parts = {
  readonly commands: readonly Block[];
  readonly config: Block;
  readonly task: Block;
  readonly agents: readonly Block[];
};

/**
 * Returns blocks that submit the guide's task and one task for each agent with a mailbox. They use the server that the guide starts, or start
 * a server with the guide's config file.
 */
function taskBlocks(place: string, { commands, config, task, agents }: Parts): Block[] {
  const requests = agents.map(({ text }) => ({
    instruction: '',
    agent: { harness: 'shell', custom_shell: text, settings: { mailbox: true } },
  }));
  const names = ['task.json', ...requests.map((_, index) => `agent-${index}.json`)];
  const lines = [
    `cd '${place}'`,
    ...(commands.some(({ text }) => /^floe up\b/m.test(text)) ? [] : ['floe up --sim --config task-config.yaml']),
    ...names.map((name) => `floe submit ${name} --watch || true`),
    'floe results --json >results.jsonl',
  ];
  const texts = [config.text, task.text, ...requests.map((request) => JSON.stringify(request))];
  const files = ['task-config.yaml', ...names].map((file, index): Block => {
    return { ...task, language: 'text', file, text: texts[index] ?? '' };
  });
  return [...files, { ...task, language: 'sh', file: null, text: `${lines.join('\n')}\n` }];
}

/** Returns the outcomes of the sessions. Throws an Error when one is wrong, or a task has none. */
function readOutcomes(path: string, agents: number): string[] {
  const results = readFileSync(path, 'utf8').trim().split('\n');
  const outcomes = results.map((line) => (JSON.parse(line) as SessionResult).outcome);
  const wrong = outcomes.find((outcome) => !EXPECTED.test(outcome));
  if (wrong !== undefined) throw new Error(`a task of the guide ended as ${wrong}`);
  if (outcomes.length <= agents) throw new Error('a task of the guide has no result');
  return [...new Set(outcomes)];
}
