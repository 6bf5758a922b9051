//go:build !planted

package planted

// On reports whether bugs can be planted in this build.
const On = false

// Is reports whether a bug is planted.
func Is(Bug) bool { return false }

// Plant chooses the bug; this build has none.
func Plant(Bug) {}
