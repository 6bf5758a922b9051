package labfile

import (
	"slices"
)

// Builtin is a lab that comes with the program.
type Builtin struct {
	Name, About, YAML string
}

// Builtins are the labs for common needs; `nicemu lab init NAME` writes one to edit.
var Builtins = []Builtin{
	{"two-hosts", "2 hosts, 4 planes, no loss", `name: two-hosts
hosts:
  a: {addr: 10.0.0.1/24}
  b: {addr: 10.0.0.2/24}
planes: 4
wire: auto
`},
	{"four-hosts", "4 hosts, 4 planes, no loss", `name: four-hosts
hosts:
  a: {addr: 10.0.0.1/24}
  b: {addr: 10.0.0.2/24}
  c: {addr: 10.0.0.3/24}
  d: {addr: 10.0.0.4/24}
planes: 4
wire: auto
`},
	{"lossy", "2 hosts, 4 planes, each losing 1 % of all packets", `name: lossy
hosts:
  a: {addr: 10.0.0.1/24}
  b: {addr: 10.0.0.2/24}
planes: 4
wire: auto
impair:
  - {loss: 1%}
`},
	{"slow-planes", "2 hosts, 4 planes of 1 Gbit/s; planes 2 and 3 are far away, and plane 3 loses 0.1 %", `name: slow-planes
hosts:
  a: {addr: 10.0.0.1/24}
  b: {addr: 10.0.0.2/24}
planes: 4
plane: {rate: 1Gbit, delay: 20us, queue: 256KiB, ecn: {min: 64KiB, max: 192KiB}}
wire: auto
impair:
  - {planes: [2, 3], delay: 500us}
  - {planes: 3, loss: 0.1%}
`},
}

// FindBuiltin returns the built-in lab of that name.
func FindBuiltin(name string) (Builtin, bool) {
	i := slices.IndexFunc(Builtins, func(b Builtin) bool { return b.Name == name })
	if i < 0 {
		return Builtin{}, false
	}
	return Builtins[i], true
}

// BuiltinNames returns the names of the built-in labs.
func BuiltinNames() []string {
	var names []string
	for _, b := range Builtins {
		names = append(names, b.Name)
	}
	return names
}

// Template is what `nicemu lab init` writes: the two-host lab with every key explained.
const Template = `# A lab: hosts with emulated RDMA NICs, joined by planes. Bring it up with: nicemu lab up FILE
name: my-lab
hosts:                              # one NIC "mr0" a host unless nics: says more
  a: {addr: 10.0.0.1/24}
  b: {addr: 10.0.0.2/24}
planes: 4                           # separate networks; every NIC has a port on each
# plane: {rate: 10Gbit, delay: 5us, mtu: 4300, queue: 256KiB, ecn: {min: 64KiB, max: 192KiB}, noise: 2ms}
#                                   # noise: of the wire's timing, floor of delay targets and loss timers; by the wire unless given
wire: auto                          # tap, udp, mem; auto takes the best this machine allows, and says so
transport: auto                     # MetaRoCE, and RoCEv2 with peers that do not speak it; or metaroce, rocev2. A host may have its own
# seed: 1                           # of all that is random
# impair:                           # the same words as ` + "`nicemu lab impair`" + `
#   - {planes: [0, 1], loss: 1%}
#   - {planes: 2, at: 10s, for: 2s, down: true}
`
