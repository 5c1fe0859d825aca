// `npm run verify -- install`: installs the optional tools that some tests need. Exits with 1 when one could not be installed.
import { findTool, TOOLS } from './tools.ts';

for (const { programs, install } of TOOLS) {
  try {
    install();
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
  for (const program of programs)
    console.log(`${program}: ${findTool(program) ?? 'missing; its tests will be skipped'}`);
}
