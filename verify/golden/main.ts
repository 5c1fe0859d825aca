// `npm run verify -- golden`: runs every golden case of test/golden in every engine mode and prints the results as a table.
//
//   npm run verify -- golden [--json] [OPTION OF VITEST…]
import { runVitest } from '../../tools/vitest.ts';

const args = process.argv.slice(2);
process.env.FLOE_ALL_TESTS = '1';
if (args.includes('--json')) process.env.FLOE_GOLDEN_JSON = '1';
const options = args.filter((arg) => arg !== '--json');
process.exit(runVitest(['test/golden', ...options], './verify/golden/reporter.ts'));
