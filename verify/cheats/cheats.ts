import type { Cheat, Surroundings } from './cheat.ts';
import { ANSWER_CHEATS } from './list/answers.ts';
import { environmentCheats } from './list/environment.ts';
import { fileCheats } from './list/files.ts';
import { HISTORY_CHEATS } from './list/history.ts';
import { PROGRAM_CHEATS } from './list/programs.ts';
import { SERVICE_CHEATS } from './list/service.ts';
import { TEST_CHEATS } from './list/tests.ts';

export function allCheats(surroundings: Surroundings): readonly Cheat[] {
  return [
    ...HISTORY_CHEATS,
    ...TEST_CHEATS,
    ...environmentCheats(surroundings),
    ...fileCheats(surroundings),
    ...PROGRAM_CHEATS,
    ...ANSWER_CHEATS,
    ...SERVICE_CHEATS,
  ];
}
