import type { DialectName, TaskRequestInput } from '../../src/schema/index.ts';
import type { ScenarioInput, SimConfigInput } from '../../src/sim/index.ts';

/** A rule of a scenario, as docs/sim-scenarios.md describes it. */
export type Rule = ScenarioInput['rules'][number];
export type Condition = NonNullable<Rule['when']>;
export type Reply = Rule['reply'];

/** A call of one of the harness's own tools. */
export type ToolCall = { readonly tool: string; readonly arguments: Record<string, unknown> };

/** The value of `agent.settings` in a task. */
export type Settings = Readonly<Record<string, unknown>>;

/** A variant of a harness, which gets a separate row in the table: the settings and dialects in which it differs from other variants. */
export type Variant = {
  readonly label: string;
  readonly settings: Settings;
  /** The dialects in which the variant is run. The default is all dialects that the adapter speaks. */
  readonly dialects?: readonly DialectName[];
};

/** Makes calls of each kind with the harness's own tools. When the harness has no tool of a kind, the call is a shell command. */
export type Calls = {
  readonly shell: (command: string) => ToolCall;
  readonly read: (path: string) => ToolCall;
  readonly edit: (path: string, oldText: string, newText: string) => ToolCall;
  readonly write: (path: string, content: string) => ToolCall;
  /** Makes a call that shows an image to the policy; `null` when the harness cannot show images. */
  readonly image: ((path: string) => ToolCall) | null;
  /** Makes a call that starts a sub-agent; `null` when the harness has no sub-agents. */
  readonly subagent: ((prompt: string) => ToolCall) | null;
};

export type Compaction = {
  /** A condition that only the harness's request for a summary meets. */
  readonly when: Condition;
  /** Context window of the engine in the compaction test case, in tokens. */
  readonly window: number;
  /** Number of parts that the task reads. Each has `partBytes` bytes; together they exceed the context window. */
  readonly parts: number;
  readonly partBytes: number;
  readonly settings?: Settings;
  readonly reply?: Reply;
};

/** The reaction of a harness to a reply that was cut at its maximum length. */
export type LengthStop = {
  /**
   * What the harness does next: it ends, requests a continuation (`continues`), requests the same turn with a greater maximum length
   * (`resamples`), or fails.
   */
  readonly reaction: 'ends' | 'continues' | 'resamples' | 'fails';
  /** The expected outcome of the session. The default is `completed`. */
  readonly outcome?: string;
  readonly settings?: Settings;
  /** The task's maximum reply length in tokens; `null` when `settings` define it instead. */
  readonly bound?: number | null;
};

/** The ways in which the policy makes a tool call invalid. */
export type MalformedCall = 'unknown_tool' | 'wrong_arguments' | 'no_object' | 'cut_off';

/**
 * The reaction of a harness to a malformed call. `reported`: it reports the mistake to the model. `resampled`: it drops the reply and
 * requests the same turn once more. `null`: the test case does not make this call.
 */
export type MalformedReaction = 'reported' | 'resampled' | null;

/** The entry of one harness in the matrix, with the settings and calls that the test cases need; README.md describes how to write one. */
export type Row = {
  /** Name of the harness in floe. */
  readonly harness: string;
  readonly variants: readonly Variant[];
  readonly calls: Calls;
  /** Returns further fields of `agent` for the task. */
  readonly agent?: (dialect: DialectName) => Omit<TaskRequestInput['agent'], 'harness' | 'dialect' | 'settings'>;
  /** Reads text files that are written to the work folder. Returns their contents by path. */
  readonly files?: () => Readonly<Record<string, string>>;
  /** Settings that are added to those of the variant in the test case with an image. */
  readonly settingsForImages?: Settings;
  /** Tools that only the main agent is offered. The default is the shell tool. */
  readonly mainTools?: readonly string[];
  /** Number of assistant turns that the harness itself writes before the first reply. The default is 0. */
  readonly turnOffset?: number;
  /** A condition that the requests of a sub-agent meet. The default is {@link SUBAGENT_MARK} in their first user message. */
  readonly subagentWhen?: Condition;
  /** Returns the last reply of a sub-agent. The default is the text alone. */
  readonly finishSubagent?: (text: string) => Reply;
  /** The policy's reply to side calls of the harness, such as requests for a title. */
  readonly sideReply?: Reply;
  readonly compaction?: Compaction;
  readonly malformed?: Readonly<Partial<Record<MalformedCall, MalformedReaction>>>;
  readonly lengthStop?: LengthStop;
  /** The reasons for which test cases are skipped, by `<cell>`, `<cell>/<dialect>` or `<cell>@<label>`. */
  readonly skips?: Readonly<Record<string, string>>;
  /** Settings of the simulated engine in all test cases of this harness. */
  readonly sim?: SimConfigInput;
};
