import {
  bundledVocabulary,
  Policy,
  parseConversation,
  parseScenarios,
  renderChat,
  type ScenarioInput,
  type TemplateMessage,
} from '@floe-rl/sim';

const vocabulary = bundledVocabulary();

/** The parts of a harness's request from which a test renders its prompt. */
export type PromptShape = {
  readonly tools: readonly string[];
  readonly user: string;
  /** Number of assistant replies that the conversation contains before this request. */
  readonly turns: number;
  readonly system?: string;
};

/**
 * Creates the simulated engine's scripted policy for the given scenarios. `ruleFor` returns the name of the rule that replies to a prompt,
 * as `<scenario>/<rule>`. Throws `schema_violation` for invalid scenarios.
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
