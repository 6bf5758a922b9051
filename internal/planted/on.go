//go:build planted

package planted

// On reports whether bugs can be planted in this build.
const On = true

var chosen Bug

// Is reports whether a bug is planted.
func Is(b Bug) bool { return b == chosen }

// Plant chooses the bug, before any engine runs.
func Plant(b Bug) { chosen = b }
