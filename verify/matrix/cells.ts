import type { Cell } from './cell.ts';
import { compactionCell } from './cells/compaction.ts';
import { editCell } from './cells/edit.ts';
import { engine429Cell, engine500Cell } from './cells/engine-faults.ts';
import { imageCell } from './cells/image.ts';
import { lengthStopCell } from './cells/length-stop.ts';
import { malformedCallCell } from './cells/malformed-call.ts';
import { parallelCallsCell } from './cells/parallel-calls.ts';
import { subagentCell } from './cells/subagent.ts';
import type { CellName } from './plan.ts';

export const CELLS: Readonly<Record<CellName, Cell>> = {
  edit: editCell,
  parallel_calls: parallelCallsCell,
  subagent: subagentCell,
  compaction: compactionCell,
  malformed_call: malformedCallCell,
  length_stop: lengthStopCell,
  engine_429: engine429Cell,
  engine_500: engine500Cell,
  image: imageCell,
};
