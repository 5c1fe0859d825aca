// A custom builder: of each conversation only the last turns are trained, what came before is context.
//
//   floe up --engine http://127.0.0.1:8000 --builder last_turns=examples/builders/last-turns.mjs
//   {"builder": {"strategy": "last_turns", "config": {"turns": 2}}}
export function createBuilder({ assembleTrace, excludedCompletions, ownedChains, refusal }) {
  const turnsOf = ({ turns = 1, ...rest }) => {
    for (const field of Object.keys(rest)) throw refusal(field, 'not known');
    if (!Number.isInteger(turns) || turns < 1) throw refusal('turns', 'must be a whole number from 1');
    return turns;
  };
  return {
    checkConfig: (config) => void turnsOf(config),
    build(graph, config) {
      const turns = turnsOf(config);
      const excluded = excludedCompletions(graph, []);
      const mayTrain = (node) => !excluded.has(node.completion.completionId);
      const chains = ownedChains(
        graph,
        'final_answer',
        (node) => (node.link === 'exact' ? node.parent : null),
        mayTrain,
      );
      for (const chain of chains) {
        for (const node of chain.filter(mayTrain).slice(0, -turns))
          excluded.set(node.completion.completionId, 'early_turn');
      }
      // A trace begins with its first trained turn: what comes before is in that turn's prompt.
      const traces = chains.map((chain) => assembleTrace(graph, chain.slice(chain.findIndex(mayTrain)), mayTrain));
      return { traces, excluded, credit: 'broadcast' };
    },
  };
}
