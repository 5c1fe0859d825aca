import {
  bundledVocabulary,
  Policy,
  parseConversation,
  parseScenarios,
  renderChat,
  type ScenarioInput,
  type TemplateMessage,
} from '../../../src/sim/index.ts';

const vocabulary = bundledVocabulary();

export type Asked = {
  readonly tools: readonly string[];
  readonly user: string;
  /** Earlier assistant turns. */
  readonly turns: number;
  readonly system?: string;
};

/** The simulator's own judgement of which rule answers a prompt, as `<scenario>/<rule>`. Throws `schema_violation`. */
export function policyOfScenarios(scenarios: readonly ScenarioInput[]): { ask(asked: Asked): string } {
  const policy = new Policy(vocabulary, parseScenarios({ scenarios }, 'the cell'), 'append_only');
  return {
    ask({ tools, user, turns, system = 'You are an agent.' }) {
      const message = (role: TemplateMessage['role'], text: string): TemplateMessage => {
        return { role, text, reasoning: null, toolCalls: [] };
      };
      const between = Array.from({ length: turns }, () => [message('assistant', 'ok'), message('tool', 'done')]);
      const text = renderChat([message('system', system), message('user', user), ...between.flat()], {
        mode: 'append_only',
        tools: tools.map((name) => ({ type: 'function', function: { name, description: `"name": ${name}x` } })),
        addGenerationPrompt: true,
      });
      const { scenario, rule } = policy.select(parseConversation(vocabulary, vocabulary.encode(text)));
      return `${scenario.name}/${rule}`;
    },
  };
}
