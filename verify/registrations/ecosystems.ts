import type { SessionResult } from '@floe-rl/core/schema';
import type { Delivery } from './comparison.ts';

/**
 * What an interface must return for a row, in addition to exact tokens. `problem` returns a sentence about what is wrong; `null` when nothing
 * is wrong.
 */
type Expectation = {
  readonly face: string;
  readonly row: string;
  problem(delivery: Delivery, result: SessionResult | undefined): string | null;
};

export type Ecosystem = {
  readonly name: string;
  /** Packages in the ecosystem's Python environment. */
  readonly packages: readonly string[];
  /** The program in `programs/` that runs the rows through the ecosystem's own classes and commands. */
  readonly program: string;
  readonly expected: readonly Expectation[];
};

const anything = (face: string, row: string): Expectation => ({ face, row, problem: () => null });

/** Expects a delivery whose fields have these values. */
function fields(face: string, row: string, values: Readonly<Record<string, unknown>>): Expectation {
  const problem = (delivery: Delivery): string | null => {
    for (const [name, value] of Object.entries(values)) {
      if (JSON.stringify(delivery[name]) !== JSON.stringify(value)) {
        return `${name} is ${JSON.stringify(delivery[name])}, not ${JSON.stringify(value)}`;
      }
    }
    return null;
  };
  return { face, row, problem };
}

/** Expects a refusal whose message contains `text`, with an HTTP status where there is one. */
function refusal(face: string, row: string, text: string, status?: number): Expectation {
  const problem = ({ message, status: actual }: Delivery): string | null => {
    if (status !== undefined && actual !== status) return `the status is ${actual}, not ${status}`;
    return String(message).includes(text) ? null : `the message does not name ${text}: ${message}`;
  };
  return { face, row, problem };
}

/** Expects one sequence for each trace of the session, or for each of its trained model calls. */
function perTrace(face: string, row: string, values: Readonly<Record<string, unknown>> = {}): Expectation {
  const others = fields(face, row, values);
  const problem = (delivery: Delivery, result: SessionResult | undefined): string | null => {
    const count = delivery.sequences?.length ?? 0;
    if (count !== result?.trace_count) return `there are ${count} sequences, not ${result?.trace_count}`;
    return others.problem(delivery, result);
  };
  return { face, row, problem };
}

function perCall(face: string, row: string): Expectation {
  const problem = (delivery: Delivery, result: SessionResult | undefined): string | null => {
    const count = delivery.sequences?.length ?? 0;
    return count === result?.completion_count ? null : `there are ${count} calls, not ${result?.completion_count}`;
  };
  return { face, row, problem };
}

const partial: Expectation['problem'] = ({ delivered_fraction: share = 0 }) =>
  share > 0 && share < 1 ? null : `the delivered share is ${share}`;

export const ECOSYSTEMS: readonly Ecosystem[] = [
  {
    name: 'nemo_gym',
    packages: ['nemo-gym==0.4.0'],
    program: 'nemo_gym_rows.py',
    expected: [
      anything('gym eval run', 'repair'),
      fields('/run', 'repair', { delivered_fraction: 1 }),
      { face: '/run', row: 'two_conversations', problem: partial },
      refusal('/run with several_traces: refuse', 'two_conversations', '2 traces', 422),
      refusal('/run of a session that must not be trained on', 'timeout', 'agent_timeout', 422),
      refusal('/run of a row without a field', 'repair', 'row.start', 422),
      fields('/run with unusable: report', 'timeout', { failure: 'agent_timeout', items: 0, reward: 0 }),
      fields('a broken continuation', 'repair', { noticed: true }),
    ],
  },
  {
    name: 'verifiers',
    packages: ['verifiers==0.4.0'],
    program: 'verifiers_rows.py',
    expected: [
      perTrace('the environment server', 'repair', { ok: true, stop_condition: 'agent_completed', errors: [] }),
      perTrace('the environment server', 'two_conversations', { ok: true, turns: 2 }),
      perTrace('the environment server', 'timeout', { ok: true, stop_condition: 'agent_timeout' }),
      perTrace('vf-eval', 'repair', { ok: true }),
      perTrace('vf-eval', 'two_conversations', { ok: true, turns: 2 }),
      refusal('a sampling parameter that floe does not have', 'repair', 'top_a'),
    ],
  },
  {
    name: 'openenv',
    packages: ['openenv==0.10.0'],
    program: 'openenv_rows.py',
    expected: [
      perCall('GenericEnvClient', 'repair'),
      perCall('GenericEnvClient', 'two_conversations'),
      fields('GenericEnvClient', 'timeout', { unusable: 'agent_timeout' }),
      perCall('POST /step', 'repair'),
      fields('FloeSessionFactory', 'repair', { code: 0, unusable: null }),
      fields('FloeSessionFactory', 'timeout', { code: 1, unusable: 'agent_timeout' }),
      refusal('a second step', 'timeout', 'call reset'),
      refusal('a wait that has passed', 'timeout', 'TimeoutError'),
    ],
  },
];
