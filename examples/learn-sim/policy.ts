// The trainer's copy of the simulated policy: the replies that it can write, and the logits for its choice between them.

/** Logits of every choice, one number per option, by scenario and choice. */
export type LogitTable = Readonly<Record<string, Readonly<Record<string, readonly number[]>>>>;

/** The reply of `GET /__sim/choices` of the simulated engine. */
export type ChoiceList = {
  readonly turn_start_ids: readonly number[];
  readonly rules: readonly {
    readonly scenario: string;
    readonly rule: number;
    readonly turns: readonly {
      readonly token_ids: readonly (number | null)[];
      readonly picks: readonly { readonly choice: string; readonly option: number }[];
    }[];
  }[];
};

/** One option of one choice: the logits of the choice are the parameters from `start` to `end` (exclusive), and `picked` is its own. */
type Pick = { readonly start: number; readonly end: number; readonly picked: number };

/** A reply that the policy can write, with the options that lead to it. */
type Turn = { readonly ids: readonly number[]; readonly picks: readonly Pick[] };

/**
 * A token at which the policy chose. `before`: the replies that were possible before the token. `after`: the replies among them that continue
 * with the token.
 */
export type Decision = { readonly before: readonly Turn[]; readonly after: readonly Turn[] };

/**
 * The role of the policy at a token of a sequence. `certain`: it is the only possible token there, so its log-probability is 0 whatever the
 * logits are. `impossible`: the policy never samples it there, so its probability is 0.
 */
export type Placement = Decision | 'certain' | 'impossible';

/** A softmax over scripted replies. It gives log-probabilities of the tokens of a conversation and their gradients. */
export class SoftmaxPolicy {
  /** The logits of all choices, one after the other. */
  parameters: Float64Array;
  private readonly choices: readonly { readonly scenario: string; readonly choice: string; readonly start: number }[];
  private readonly turnStart: readonly number[];
  private readonly rules: readonly (readonly Turn[])[];

  /** Throws an Error for replies with random thinking, and for a reply that two rules write, because its ids do not show the rule. */
  constructor(list: ChoiceList, logits: LogitTable) {
    const choices: { scenario: string; choice: string; start: number; end: number }[] = [];
    const values: number[] = [];
    for (const [scenario, byChoice] of Object.entries(logits)) {
      for (const [choice, options] of Object.entries(byChoice)) {
        choices.push({ scenario, choice, start: values.length, end: values.length + options.length });
        values.push(...options);
      }
    }
    const seen = new Set<string>();
    this.rules = list.rules.map(({ scenario, rule, turns }) =>
      turns.map(({ token_ids, picks }): Turn => {
        const ids = token_ids.filter((id) => id !== null);
        const name = `rule ${rule} of scenario ${scenario}`;
        if (ids.length < token_ids.length)
          throw new Error(`${name} writes random thinking, which this trainer cannot place`);
        if (seen.has(ids.join())) throw new Error(`${name} writes the same reply as another rule`);
        seen.add(ids.join());
        return {
          ids,
          picks: picks.map(({ choice, option }): Pick => {
            const found = choices.find((one) => one.scenario === scenario && one.choice === choice);
            if (found === undefined)
              throw new Error(`the engine has no logits of choice ${choice} of scenario ${scenario}`);
            return { start: found.start, end: found.end, picked: found.start + option };
          }),
        };
      }),
    );
    this.turnStart = list.turn_start_ids;
    this.choices = choices;
    this.parameters = Float64Array.from(values);
  }

  /** Reads the choices of `scenario` and the current logits from a simulated engine. */
  static async load(engineUrl: string, scenario: string): Promise<SoftmaxPolicy> {
    const list = await getJson<ChoiceList>(`${engineUrl}/__sim/choices?scenario=${scenario}`);
    const { logits } = await getJson<{ logits: LogitTable }>(`${engineUrl}/__sim/weights`);
    return new SoftmaxPolicy(list, { [scenario]: logits[scenario] ?? {} });
  }

  /**
   * Finds each token of a conversation among the replies that the policy can write. A reply begins after the ids that begin a turn of the
   * model. Its ids show which rule wrote it: the rule that can write all of them. All ids outside of such replies are impossible.
   */
  place(ids: readonly number[]): Placement[] {
    const placements = ids.map((): Placement => 'impossible');
    for (let start = this.turnStart.length; start < ids.length; start++) {
      if (!this.turnStart.every((id, index) => ids[start - this.turnStart.length + index] === id)) continue;
      let live = this.rules.find((turns) => turns.some((turn) => agrees(turn, ids, start))) ?? [];
      for (let position = start; position < ids.length; position++) {
        const after = live.filter((turn) => turn.ids[position - start] === ids[position]);
        if (after.length === 0) break;
        placements[position] = after.length === live.length ? 'certain' : { before: live, after };
        live = after;
      }
    }
    return placements;
  }

  /** Returns the log-probability of a token under `parameters`; -Infinity for an impossible one. */
  logProbability(placement: Placement, parameters: Float64Array = this.parameters): number {
    if (placement === 'certain') return 0;
    if (placement === 'impossible') return Number.NEGATIVE_INFINITY;
    const weightOf = (turn: Turn): number => logWeight(turn, parameters);
    return logSumExp(placement.after.map(weightOf)) - logSumExp(placement.before.map(weightOf));
  }

  /** Adds `scale` times the gradient of a token's log-probability to `gradient`. */
  addGradient({ before, after }: Decision, scale: number, gradient: Float64Array): void {
    this.addExpected(after, scale, gradient);
    this.addExpected(before, -scale, gradient);
  }

  /** Returns the parameters as a table of logits, as the engine takes them. */
  logits(): LogitTable {
    const table: Record<string, Record<string, number[]>> = {};
    for (const [index, { scenario, choice, start }] of this.choices.entries()) {
      const end = this.choices[index + 1]?.start ?? this.parameters.length;
      table[scenario] = { ...table[scenario], [choice]: Array.from(this.parameters.slice(start, end)) };
    }
    return table;
  }

  /** Adds `scale` times the mean gradient of the log-weights of `turns`, weighted by the probabilities of the turns. */
  private addExpected(turns: readonly Turn[], scale: number, gradient: Float64Array): void {
    const weights = turns.map((turn) => logWeight(turn, this.parameters));
    const total = logSumExp(weights);
    for (const [index, { picks }] of turns.entries()) {
      const share = scale * Math.exp((weights[index] as number) - total);
      for (const { start, end, picked } of picks) {
        const logits = this.parameters.subarray(start, end);
        const norm = logSumExp(logits);
        for (const [option, logit] of logits.entries()) {
          const target = start + option === picked ? 1 : 0;
          gradient[start + option] = (gradient[start + option] as number) + share * (target - Math.exp(logit - norm));
        }
      }
    }
  }
}

/** Whether `ids` contains all of a turn from `start` on, or ends within it. */
function agrees(turn: Turn, ids: readonly number[], start: number): boolean {
  return turn.ids.every((id, index) => start + index >= ids.length || ids[start + index] === id);
}

/** Returns the log-probability that the policy chooses the options of a turn. */
function logWeight({ picks }: Turn, parameters: Float64Array): number {
  return picks.reduce(
    (sum, { start, end, picked }) => sum + (parameters[picked] as number) - logSumExp(parameters.subarray(start, end)),
    0,
  );
}

function logSumExp(values: Iterable<number>): number {
  const list = [...values];
  const max = Math.max(...list);
  return max + Math.log(list.reduce((sum, value) => sum + Math.exp(value - max), 0));
}

async function getJson<T>(url: string): Promise<T> {
  const reply = await fetch(url);
  if (!reply.ok) throw new Error(`GET ${url} failed with ${reply.status}: ${await reply.text()}`);
  return (await reply.json()) as T;
}
