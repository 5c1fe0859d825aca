import type { EngineLocality, EnginePolicy } from '../../schema/index.ts';
import { AssignmentCount } from './assignment-count.ts';
import { HashRing } from './hash-ring.ts';
import { LeastInFlight } from './least-in-flight.ts';
import { LocalFirst } from './local-first.ts';

/** What a choice policy knows of an engine. */
export type Candidate = {
  readonly id: string;
  /** On this host: first among engines that are equally busy. */
  readonly local: boolean;
  /** Sampling calls under way. */
  readonly inflight: number;
};

/** Decides which engine of one pool gets a session's next call. */
export interface ChoicePolicy {
  joined(engine: Candidate): void;
  left(engine: Candidate): void;
  /** One of `free`, which is not empty and has engines that have joined. */
  pick<T extends Candidate>(sessionId: string, free: readonly T[]): T;
  /** A call of the session goes there. */
  assigned(sessionId: string, engine: Candidate): void;
}

export function choicePolicy(policy: EnginePolicy, locality: EngineLocality = 'none'): ChoicePolicy {
  const among = policyOf(policy);
  return locality === 'prefer_local' ? new LocalFirst(among) : among;
}

function policyOf(policy: EnginePolicy): ChoicePolicy {
  switch (policy) {
    case 'least_in_flight':
      return new LeastInFlight();
    case 'assignment_count':
      return new AssignmentCount();
    case 'consistent_hash':
      return new HashRing();
  }
}
