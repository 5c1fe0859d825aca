import { readdir } from 'node:fs/promises';
import type { RuleCondition, ScenarioInput, Segment } from '../../../src/sim/index.ts';

export type Call = { readonly tool: string; readonly arguments: Readonly<Record<string, unknown>> };

export type Row = {
  readonly harness: string;
  readonly variants: readonly { readonly label: string; readonly settings: object; readonly dialects?: string[] }[];
  readonly calls: {
    readonly shell: (command: string) => Call;
    readonly read: (path: string) => Call;
    readonly edit: (path: string, from: string, to: string) => Call;
    readonly write: (path: string, content: string) => Call;
    readonly image?: ((path: string) => Call) | null;
    readonly subagent?: ((prompt: string) => Call) | null;
  };
  readonly compaction?: object | null;
  readonly lengthStop?: { readonly reaction: string };
  readonly mainTools?: readonly string[];
  readonly turnOffset?: number;
  readonly skips?: Readonly<Record<string, string>>;
};

export type Planned = {
  readonly row: Row;
  readonly variant: Row['variants'][number];
  readonly dialect: string;
  readonly cell: string;
  readonly skip: string | null;
};

export type Made = {
  readonly scenarios: readonly ScenarioInput[];
  readonly grader: string;
  readonly instruction: string;
};

export type Adapters = ReadonlyMap<string, { dialects: string[]; version: string | null; installed: boolean }>;

export type PlanModule = {
  readonly CELL_NAMES: readonly string[];
  planCells(
    rows: readonly Row[],
    options: { adapters: Adapters; served: readonly string[]; filter?: Record<string, string[]> },
  ): Planned[];
  checkRow(row: unknown, file: string): void;
};

export type ScriptModule = {
  offersTools(row: Row): RuleCondition;
  mainScenario(row: Row, turns: readonly (readonly Segment[])[]): ScenarioInput;
  sideScenario(row: Row): ScenarioInput;
  subagentScenario(row: Row, turns: readonly (readonly Segment[])[]): ScenarioInput;
  readonly SUBAGENT_MARK: string;
};

const ROOT = new URL('../../../verify/matrix/', import.meta.url);

/** The matrix is plain JavaScript, as the other programs beside src/; the caller says what is in a module. */
export async function load<Module>(name: string): Promise<Module> {
  return (await import(new URL(name, ROOT).href)) as Module;
}

/** Every row that there is, with its file's name. */
export async function allRows(): Promise<readonly (readonly [string, Row])[]> {
  const files = (await readdir(new URL('../../matrix/rows/', ROOT))).filter((name) => name.endsWith('.mjs'));
  return Promise.all(files.sort().map(async (file) => [file, (await load<{ row: Row }>(`rows/${file}`)).row] as const));
}

/** A row with nothing out of the ordinary. */
export function plainRow(changes: Partial<Row> = {}): Row {
  const call = (tool: string) => (value: string) => ({ tool, arguments: { value } });
  return {
    harness: 'plain',
    variants: [{ label: 'plain', settings: {} }],
    calls: {
      shell: call('sh'),
      read: call('r'),
      edit: call('e'),
      write: call('w'),
      image: call('i'),
      subagent: call('a'),
    },
    compaction: {},
    lengthStop: { reaction: 'ends' },
    ...changes,
  };
}
