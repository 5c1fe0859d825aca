import { join } from 'node:path';
import { AgentHost, type EpisodeBackend, type EpisodeEnd, type EpisodeOrder } from '@floe-rl/agents';
import { FloeError, systemClock } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import { repositoryRoot } from '../../tools/repository.ts';
import type { Finding } from '../runner/checks.ts';

/** A module as an operator could write it, with a tool that can show every defect. */
const MODULE = join(repositoryRoot(), 'verify', 'fixtures', 'hostile-tool.js');
/** Maximum time in milliseconds for which a plug-in may block its process. */
const BLOCKED_MS = 500;

/** The defects of the tool, by how an episode must end when the tool shows the defect in its only call. */
const ENDS = {
  /** The agent gets a text as the tool's result, and the episode continues. */
  observed: [
    'good',
    'return 100 MB of text',
    'return 100 MB in a part',
    'return too late',
    'return what never settles',
  ],
  /** The episode fails with an error that names the tool. Other episodes in its process continue. */
  blamed: [
    'throw',
    'throw a text',
    'throw nothing',
    'throw what has no text',
    'reject',
    'return nothing',
    'return a number',
    'return a function',
    'return a cyclic object',
    'return cyclic content',
    'return a cyclic part',
    'return an object whose fields throw',
    'return content whose fields throw',
    'return a reward that is no number',
    'return an infinite reward',
    'return a cyclic end',
    'return an end that is a text',
    'return an image of 100 MB',
  ],
  /** The episode fails with an error that names the tool, and its process ends. Other episodes in this process are retried. */
  fatal: ['throw outside of its promises', 'leave a rejection', 'end the process', 'block'],
} as const;
type Ending = keyof typeof ENDS;

const { signal } = new AbortController();

/**
 * Runs an episode with each defect of the tool, `rounds` times. An episode of the same plug-in and an episode with one of floe's own tools run
 * at the same time. The episode with the defect must continue, or end with a typed error that names the plug-in. The defect must not make any
 * other episode fail.
 */
export async function runHostileTools(rounds: number): Promise<Finding[]> {
  const host = new AgentHost({
    ...{ clock: systemClock, services: {}, mcpServers: [], env: {}, processes: 1, blockedMs: BLOCKED_MS },
    modules: { agents: {}, environments: {}, tools: { hostile: MODULE } },
  });
  const problems: string[] = [];
  let episodes = 0;
  try {
    for (let round = 0; round < rounds; round++) {
      for (const ending of Object.keys(ENDS) as Ending[]) {
        for (const what of ENDS[ending]) {
          const problem = await problemOf(host, ending, what);
          if (problem !== null) problems.push(`${what}: ${problem}`);
          episodes += 3;
        }
      }
    }
  } finally {
    await host.close();
  }
  for (const problem of problems) console.log(problem);
  return [
    {
      what: `${rounds * Object.values(ENDS).flat().length} defects of a tool`,
      isPassed: problems.length === 0,
      detail: problems[0] ?? `${episodes} episodes, each ended as it should`,
    },
  ];
}

/** Returns what is wrong with the end of an episode and of its neighbours; `null` when nothing is. */
async function problemOf(host: AgentHost, ending: Ending, what: string): Promise<string | null> {
  const [beside, apart] = [waiting(), waiting()];
  const neighbour = settled(host.run(orderFor('hostile'), beside.backend, signal));
  const stranger = settled(host.run(orderFor('think'), apart.backend, signal));
  await Promise.all([beside.asked, apart.asked]);
  const own = await settled(host.run(orderFor('hostile'), replying([calling('hostile', { what }), DONE]), signal));
  beside.answer(DONE);
  apart.answer(DONE);
  const [others, strangers] = [await neighbour, await stranger];
  return (
    wrongEnd(own, ending) ??
    (strangers.error === null ? null : `an episode of another process ended with ${strangers.error.message}`) ??
    wrongNeighbour(others, ending)
  );
}

function wrongEnd({ end, error }: Settled, ending: Ending): string | null {
  if (ending === 'observed') return end?.result.status === 'finished' ? null : `ended with ${error?.message}`;
  if (error === null) return `ended as ${end?.result.status}`;
  const isTyped = FloeError.is(error) && error.code === 'plugin_failed';
  return isTyped && error.message.includes('hostile') ? null : `ended with ${error.message}`;
}

function wrongNeighbour({ error }: Settled, ending: Ending): string | null {
  // The neighbour's process has ended through no fault of the neighbour, so it must get a retryable error.
  const isRetried = FloeError.is(error) && error.code === 'runtime_failed';
  if (ending === 'fatal') return isRetried ? null : `the neighbour ended with ${error?.message ?? 'no error'}`;
  return error === null ? null : `the neighbour ended with ${error.message}`;
}

type Settled = { readonly end: EpisodeEnd | null; readonly error: Error | null };

function settled(running: Promise<EpisodeEnd>): Promise<Settled> {
  return running.then(
    (end) => ({ end, error: null }),
    (error: Error) => ({ end: null, error }),
  );
}

function orderFor(tool: string): EpisodeOrder {
  return {
    ...{ sessionId: 's', taskId: 't', agent: 'tool_call', options: {}, tools: [{ name: tool, config: {} }] },
    ...{ hints: false, seed: 0, instruction: 'Go.', systemPrompt: null, metadata: {}, skills: [] },
    ...{ environment: null, workdir: null, limits: { turns: null, contextTokens: null } },
    endpoint: { baseUrl: 'http://127.0.0.1:1', apiKey: '' },
  };
}

const DONE: AssistantMessage = { role: 'assistant', content: 'done' };

function calling(name: string, args: object): AssistantMessage {
  const call = { id: 'call', type: 'function' as const, function: { name, arguments: JSON.stringify(args) } };
  return { role: 'assistant', content: null, tool_calls: [call] };
}

function turnOf(message: AssistantMessage) {
  const usage = { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null };
  const finishReason = message.tool_calls === undefined ? ('stop' as const) : ('tool_calls' as const);
  return { completionId: 'c', message, finishReason, usage };
}

/** Returns a model that gives these replies in this order. */
function replying(replies: readonly AssistantMessage[]): EpisodeBackend {
  const rest = [...replies];
  return { openTools: null, onActivity: () => {}, ask: async () => turnOf(rest.shift() ?? DONE) };
}

/** Returns a model that replies only when `answer` is called. `asked` resolves when the episode waits for the reply. */
function waiting(): {
  readonly backend: EpisodeBackend;
  readonly asked: Promise<void>;
  answer(message: AssistantMessage): void;
} {
  let onAsked = (): void => {};
  const asked = new Promise<void>((resolve) => (onAsked = resolve));
  let answer = (_: AssistantMessage): void => {};
  const reply = new Promise<AssistantMessage>((resolve) => (answer = resolve));
  const backend: EpisodeBackend = {
    openTools: null,
    onActivity: () => {},
    async ask() {
      onAsked();
      return turnOf(await reply);
    },
  };
  return { backend, asked, answer };
}
