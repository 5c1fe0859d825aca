/** Thrown inside a transaction that decided on what is no longer so. The store undoes it and runs its work once more. */
export class WorkAgain extends Error {}
