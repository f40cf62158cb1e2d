package front

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// sandboxRoutes are the beginnings of the routes of the API that a sandbox's id
// follows.
var sandboxRoutes = []string{"/sandboxes/", "/v2/sandboxes/", "/cay/v1/sandboxes/", "/events/sandboxes/"}

const checkpointRoute = "/cay/v1/checkpoints/"

// inPath finds the sandbox that a route of the API names. A text that has not the form of an
// id names none.
func inPath(path string) (cay.SandboxID, bool) {
	for _, root := range sandboxRoutes {
		if rest, ok := strings.CutPrefix(path, root); ok {
			name, _, _ := strings.Cut(rest, "/")
			id, ok := sandboxOf(name)
			return id, ok && id != "metrics"
		}
	}
	return "", false
}

// sandboxOf reads the id of a sandbox as clients write it: older SDKs add a client's id.
func sandboxOf(text string) (cay.SandboxID, bool) {
	id, _, _ := strings.Cut(text, "-")
	return cay.SandboxID(id), cay.ValidID(id)
}

func checkpointIn(path string) (cay.SnapshotID, bool) {
	rest, ok := strings.CutPrefix(path, checkpointRoute)
	id, _, _ := strings.Cut(rest, "/")
	return cay.SnapshotID(id), ok && id != ""
}

// isCreate reports whether a request makes a sandbox of a template.
func isCreate(r *http.Request) bool {
	return r.Method == http.MethodPost && (r.URL.Path == "/sandboxes" || r.URL.Path == "/v2/sandboxes")
}

// isCopy reports whether a request makes sandboxes of a checkpoint, as each node can whose bucket
// has it. Its own is the first to be asked: it needs no copy.
func isCopy(r *http.Request) bool {
	id, ok := checkpointIn(r.URL.Path)
	return ok && r.Method == http.MethodPost && r.URL.Path == checkpointRoute+string(id)+"/fork"
}

// isTicket reports whether a request asks for a ticket, which the node keeps in memory
// that its connection comes to: the owner of the sandbox that the body names.
func isTicket(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == "/cay/v1/tickets"
}

// isStatus reports whether a request asks which nodes the cluster has. Each node reads that
// in the records: an operator asks for it above all while the node that leads is away.
func isStatus(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Path == "/cay/v1/admin/cluster"
}

// machineRoutes are the routes of the API that are about the machine of one node.
var machineRoutes = []string{"checks", "garbage", "package-cache", "storage", "snapshots"}

// nodeIn is the node whose machine a request is about, if it names one.
func nodeIn(r *http.Request) cay.NodeID {
	rest, ok := strings.CutPrefix(r.URL.Path, "/cay/v1/admin/")
	of, _, _ := strings.Cut(rest, "/")
	if !ok || !slices.Contains(machineRoutes, of) {
		return ""
	}
	return cay.NodeID(r.URL.Query().Get("nodeID"))
}
