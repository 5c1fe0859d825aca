// Toolsets that are kept between sessions. They write what happens to them to the file that the service `kept_log` names.
import { appendFileSync } from 'node:fs';
import { defineTool, defineToolset } from 'floe/plugins';

export function counter(scope) {
  return defineToolset({
    name: `${scope}_counter`,
    description: 'counts its calls since it was opened or reset',
    config: { safeParse: (data) => ({ success: true, data }) },
    scope,
    async open({ label }, { services }) {
      const log = (event) => appendFileSync(services.kept_log, `${event} ${label}\n`);
      let calls = 0;
      log('open');
      const count = defineTool({
        name: 'count',
        description: 'counts its calls',
        effect: 'environment',
        parameters: { type: 'object', properties: {} },
        run: async () => `call ${++calls}`,
      });
      return {
        tools: [count],
        async reset() {
          calls = 0;
          log('reset');
        },
        close: async () => log('close'),
      };
    },
  });
}

export default counter('group');
