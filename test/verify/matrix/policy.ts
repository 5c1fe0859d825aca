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

/** Describes a harness's request for a test: the parts from which its prompt is rendered. */
export type PromptShape = {
  readonly tools: readonly string[];
  readonly user: string;
  /** Number of replies of the assistant before this request. */
  readonly turns: number;
  readonly system?: string;
};

/**
 * Creates the simulated policy that replies according to the given scenarios. Its `ruleFor` returns the rule that replies to a prompt, as
 * `<scenario>/<rule>`. Throws `schema_violation` for invalid scenarios.
 */
export function policyOfScenarios(scenarios: readonly ScenarioInput[]): { ruleFor(prompt: PromptShape): string } {
  const policy = new Policy(vocabulary, parseScenarios({ scenarios }, 'the cell'), 'append_only');
  return {
    ruleFor({ tools, user, turns, system = 'You are an agent.' }) {
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
