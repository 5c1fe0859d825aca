import type { DialectName, TaskRequestInput } from '../../src/schema/index.ts';
import type { ScenarioInput, SimConfigInput } from '../../src/sim/index.ts';

/** A rule of a scenario and its parts, as docs/sim-scenarios.md describes them. */
export type Rule = ScenarioInput['rules'][number];
export type Condition = NonNullable<Rule['when']>;
export type Reply = Rule['reply'];

/** A call of one of the harness's own tools. */
export type ToolCall = { readonly tool: string; readonly arguments: Record<string, unknown> };

/** `agent.settings` of a task. */
export type Settings = Readonly<Record<string, unknown>>;

/** What is different between two lines of one harness. */
export type Variant = {
  readonly label: string;
  readonly settings: Settings;
  /** The dialects that it is run in; default: all that the adapter speaks. */
  readonly dialects?: readonly DialectName[];
};

/** How to write a call of the kind with the harness's tools; without a tool of the kind it is a shell command. */
export type Calls = {
  readonly shell: (command: string) => ToolCall;
  readonly read: (path: string) => ToolCall;
  readonly edit: (path: string, oldText: string, newText: string) => ToolCall;
  readonly write: (path: string, content: string) => ToolCall;
  /** Shows an image to the policy; `null` when the harness cannot. */
  readonly image: ((path: string) => ToolCall) | null;
  /** Starts a sub-agent; `null` when the harness has none. */
  readonly subagent: ((prompt: string) => ToolCall) | null;
};

export type Compaction = {
  /** Only the request for a summary fulfils it. */
  readonly when: Condition;
  /** Tokens of the engine's context window in this cell. */
  readonly window: number;
  /** The task reads this many parts of `partBytes` bytes each, which together do not fit the window. */
  readonly parts: number;
  readonly partBytes: number;
  readonly settings?: Settings;
  readonly reply?: Reply;
};

/** What a harness does after a reply that was cut at its bound. */
export type LengthStop = {
  /** `continues`: asks the model to continue; `resamples`: requests the same turn with a higher bound. */
  readonly reaction: 'ends' | 'continues' | 'resamples' | 'fails';
  /** How the session ends; default `completed`. */
  readonly outcome?: string;
  readonly settings?: Settings;
  /** The task's bound on a reply, in tokens; `null` leaves it to `settings`. */
  readonly bound?: number | null;
};

/** Ways in which a policy gets a tool call wrong. */
export type MalformedCall = 'unknown_tool' | 'wrong_arguments' | 'no_object' | 'cut_off';

/**
 * What a harness does with a malformed call. `reported`: it reports the mistake to the model; `resampled`: it drops the reply and requests
 * the same turn once more; `null`: the call is left out of the cell.
 */
export type MalformedReaction = 'reported' | 'resampled' | null;

/** One harness of the matrix; README.md describes how to write one. */
export type Row = {
  /** Its name in floe. */
  readonly harness: string;
  readonly variants: readonly Variant[];
  readonly calls: Calls;
  /** Further fields of `agent` in the task. */
  readonly agent?: (dialect: DialectName) => Omit<TaskRequestInput['agent'], 'harness' | 'dialect' | 'settings'>;
  /** Reads text files that are written to the work folder, by path. */
  readonly files?: () => Readonly<Record<string, string>>;
  /** Added to the settings of the variant in the image cell. */
  readonly settingsForImages?: Settings;
  /** Tools that only the main agent is offered; default: the shell tool. */
  readonly mainTools?: readonly string[];
  /** Assistant turns that the harness itself writes before the first reply; default 0. */
  readonly turnOffset?: number;
  /** Recognises the requests of a sub-agent; default: the mark in their first user message. */
  readonly subagentWhen?: Condition;
  /** The last reply of a sub-agent; default: the text alone. */
  readonly finishSubagent?: (text: string) => Reply;
  /** The reply to side calls of the harness, such as titles. */
  readonly sideReply?: Reply;
  readonly compaction?: Compaction;
  readonly malformed?: Readonly<Partial<Record<MalformedCall, MalformedReaction>>>;
  readonly lengthStop?: LengthStop;
  /** Why cells are left out, by `<cell>`, `<cell>/<dialect>` or `<cell>@<label>`. */
  readonly skips?: Readonly<Record<string, string>>;
  /** Settings of the simulated engine in all cells of the row. */
  readonly sim?: SimConfigInput;
};
