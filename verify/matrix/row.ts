import type { DialectName, TaskRequestInput } from '@floe-rl/core/schema';
import type { ScenarioInput, SimConfigInput } from '@floe-rl/sim';

/** A rule of a scenario of the simulated policy, as docs/sim-scenarios.md describes it. */
export type Rule = ScenarioInput['rules'][number];
export type Condition = NonNullable<Rule['when']>;
export type Reply = Rule['reply'];

/** A call that the simulated policy makes of one of the harness's own tools. */
export type ToolCall = { readonly tool: string; readonly arguments: Record<string, unknown> };

/** Harness settings: the value of `agent.settings` in a task. */
export type Settings = Readonly<Record<string, unknown>>;

/** A variant of a harness, with the settings and dialects that distinguish it. Each variant gets a separate row in the printed table. */
export type Variant = {
  readonly label: string;
  readonly settings: Settings;
  /** The dialects in which the variant is tested. The default is all dialects that floe's adapter for the harness supports. */
  readonly dialects?: readonly DialectName[];
};

/**
 * Functions that make a tool call of each kind with the harness's own tools. When the harness has no tool of a kind, the function makes a
 * call of the shell tool.
 */
export type Calls = {
  readonly shell: (command: string) => ToolCall;
  readonly read: (path: string) => ToolCall;
  readonly edit: (path: string, oldText: string, newText: string) => ToolCall;
  readonly write: (path: string, content: string) => ToolCall;
  /**
   * Makes a tool call that reads an image file, so that the next prompt contains the image; `null` when the harness cannot show images to
   * the model.
   */
  readonly image: ((path: string) => ToolCall) | null;
  /** Makes a tool call that starts a sub-agent with this prompt; `null` when the harness has no sub-agents. */
  readonly subagent: ((prompt: string) => ToolCall) | null;
};

export type Compaction = {
  /** A condition that only the harness's request for a summary of the conversation meets. */
  readonly when: Condition;
  /** Context window of the simulated engine in the test case `compaction`, in tokens. */
  readonly window: number;
  /** Number of text parts that the agent reads. Each part has `partBytes` bytes, and all parts together exceed the context window. */
  readonly parts: number;
  readonly partBytes: number;
  readonly settings?: Settings;
  readonly reply?: Reply;
};

/** How a harness reacts to a reply that was cut at the maximum reply length. */
export type LengthStop = {
  /**
   * What the harness does next: it ends its run (`ends`), requests a continuation (`continues`), requests the same turn with a greater
   * maximum length (`resamples`), or fails (`fails`).
   */
  readonly reaction: 'ends' | 'continues' | 'resamples' | 'fails';
  /** The outcome that the session must have. The default is `completed`. */
  readonly outcome?: string;
  readonly settings?: Settings;
  /** Maximum reply length in tokens that the task sets; `null` when `settings` set the maximum instead. */
  readonly bound?: number | null;
};

/** The ways in which the simulated policy makes a tool call invalid. */
export type MalformedCall = 'unknown_tool' | 'wrong_arguments' | 'no_object' | 'cut_off';

/**
 * How a harness reacts to a malformed tool call. `reported`: it reports the mistake to the model. `resampled`: it drops the reply and
 * requests the same turn once more. `null`: the test case does not contain this kind of malformed call.
 */
export type MalformedReaction = 'reported' | 'resampled' | null;

/**
 * The entry of one harness in the matrix: the settings and tool calls that the test cases need. README.md describes how to write an entry.
 */
export type Row = {
  /** Name of the harness in floe, as in `agent.harness` of a task. */
  readonly harness: string;
  readonly variants: readonly Variant[];
  readonly calls: Calls;
  /** Returns additional fields of the task's `agent` object for a dialect. */
  readonly agent?: (dialect: DialectName) => Omit<TaskRequestInput['agent'], 'harness' | 'dialect' | 'settings'>;
  /** Returns the contents of text files that are written to the agent's work folder before it starts, by path. */
  readonly files?: () => Readonly<Record<string, string>>;
  /** Settings that the test case `image` adds to the settings of the variant. */
  readonly settingsForImages?: Settings;
  /** Names of tools. A request that offers all of them is recognised as a request of the main agent. The default is the shell tool. */
  readonly mainTools?: readonly string[];
  /** Number of assistant messages that the harness itself puts into the conversation before the model's first reply. The default is 0. */
  readonly turnOffset?: number;
  /**
   * A condition that only requests of a sub-agent meet. By default, a request is recognised by {@link SUBAGENT_MARK} in its first user
   * message.
   */
  readonly subagentWhen?: Condition;
  /** Returns the simulated policy's last reply to a sub-agent. The default is a reply of `text` alone. */
  readonly finishSubagent?: (text: string) => Reply;
  /** The reply of the simulated policy to side calls of the harness, such as requests for a title. */
  readonly sideReply?: Reply;
  readonly compaction?: Compaction;
  readonly malformed?: Readonly<Partial<Record<MalformedCall, MalformedReaction>>>;
  readonly lengthStop?: LengthStop;
  /**
   * Test cases that are skipped, with the reason. Keys are `<cell>`, `<cell>/<dialect>` or `<cell>@<variant label>`, where `<cell>` is the
   * name of a test case.
   */
  readonly skips?: Readonly<Record<string, string>>;
  /** Settings of the simulated engine in all test cases of this harness. */
  readonly sim?: SimConfigInput;
};
