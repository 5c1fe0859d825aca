// What holds for every cell: the task is done, the traces equal the ledger, and nothing that was sampled is lost. Pure.

/**
 * What the cells' own checks work on. `entries`: the ledger's of this session; `completions`: as floe recorded them.
 */
export function factsOf({ result, completions, entries, firedFaults }) {
  const byId = new Map(completions.map((completion) => [completion.completion_id, completion]));
  const ordered = [...completions].sort((a, b) => a.index - b.index);
  const scenarioOf = new Map(entries.map((entry) => [entry.request_id, entry.scenario]));
  const promptOf = new Map(entries.map((entry) => [entry.request_id, entry.prompt_ids?.length ?? 0]));
  const byScenario = (name) => ordered.filter(({ completion_id }) => scenarioOf.get(completion_id) === name);
  return {
    result,
    entries,
    completions: ordered,
    traces: result.trajectory?.traces ?? [],
    /** Completions that a scenario's script gave, by arrival. */
    byScenario,
    main: byScenario('main'),
    firedFaults,
    /** Of a completion's request, as the engine counted them. */
    promptTokens: ({ completion_id }) => promptOf.get(completion_id) ?? 0,
    /** All messages of a completion's request; records hold only what is new since their base. */
    messages: (completion) => messagesOf(completion, byId),
  };
}

function messagesOf({ request }, byId) {
  const base = request.base === null ? undefined : byId.get(request.base);
  const kept = base === undefined ? [] : messagesOf(base, byId).slice(0, request.keep);
  return [...kept, ...request.messages];
}

/** What the tools said in a conversation, one text for each result. Not what the calls say, which quote their commands. */
export function toolResults(messages) {
  return messages.filter(({ role }) => role === 'tool').map(({ content }) => JSON.stringify(content));
}

/** The harness did its task. `expect.outcome`: how the session is to end; default `completed`. */
export function taskProblems({ result }, { outcome = 'completed', reward = 1 } = {}) {
  const problems = [];
  if (result.outcome !== outcome) {
    const why = result.error === null ? '' : `: ${result.error.code}: ${result.error.message}`;
    problems.push(`outcome ${result.outcome} instead of ${outcome}${why}`);
  }
  if (result.reward !== reward) problems.push(`reward ${result.reward} instead of ${reward}`);
  return problems;
}

/** Every token in the ledger is trained or excluded with a reason, but for calls that were cut before anyone got them. */
export function accountProblems({ result, completions, entries }) {
  const { audit } = result;
  if (audit === null) return entries.length === 0 ? [] : ['there is no audit'];
  const problems = [];
  const recorded = new Set(completions.map(({ completion_id }) => completion_id));
  const sampledBy = new Map(entries.map((entry) => [entry.request_id, entry.response_ids.length]));
  for (const entry of entries) {
    if (recorded.has(entry.request_id) || entry.aborted_at !== null) continue;
    problems.push(
      `the engine sampled ${entry.response_ids.length} tokens for ${entry.request_id}, which floe did not record`,
    );
  }
  for (const id of recorded)
    if (!sampledBy.has(id)) problems.push(`${id} is recorded, and the engine never sampled it`);
  const sampled = [...recorded].reduce((sum, id) => sum + (sampledBy.get(id) ?? 0), 0);
  const excluded = Object.values(audit.tokens.excluded).reduce((sum, count) => sum + count, 0);
  if (audit.tokens.sampled !== sampled)
    problems.push(`the audit has ${audit.tokens.sampled} sampled tokens, the ledger ${sampled}`);
  if (audit.tokens.trained + excluded !== sampled) {
    problems.push(`${audit.tokens.trained} trained and ${excluded} excluded tokens are not the ${sampled} sampled`);
  }
  return problems;
}

/** Titles, routing and the like are no work of the agent. A wrong label there would train them. */
export function labelProblems({ byScenario }) {
  return byScenario('side')
    .filter(({ call_kind }) => call_kind === 'main' || call_kind === 'subagent')
    .map(({ completion_id, call_kind }) => `${completion_id} is a side call of the harness and labelled ${call_kind}`);
}

/** Scenarios that are the agent's own work. */
const WORK = ['main', 'subagent', 'compaction'];

/** Whatever the agent's own script gave and the harness used is in a trace: excluding all of it would keep every sum. */
export function workProblems({ byScenario, traces }) {
  const traced = new Set(traces.flatMap(({ completion_ids }) => completion_ids));
  return WORK.flatMap(byScenario)
    .filter(({ completion_id, abandoned, undelivered }) => !abandoned && !undelivered && !traced.has(completion_id))
    .map(({ completion_id, call_kind }) => `${completion_id} (${call_kind}) is the agent's work and in no trace`);
}

export function mismatchProblems(mismatches) {
  return mismatches.map(({ completion_id, what, detail }) => `ledger: ${completion_id ?? 'trace'}: ${what}: ${detail}`);
}
