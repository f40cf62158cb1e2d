package front

import (
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// elsewhere are the operations that name a sandbox beside their path, and how each comes
// to the node that it is for.
var elsewhere = map[string]string{
	"createTicket":        "by the body: trip.find",
	"actOnSandboxes":      "cut by owners: trip.eachItsOwn",
	"getSandboxesMetrics": "all nodes are asked: ofAll",
	"listSnapshots":       "the records tell",
	"listApprovals":       "the records tell",
	"createApproval":      "the records tell",
	"createTrigger":       "the records tell",
	"updateTrigger":       "the records tell",
}

// schema is the part of a schema that the test below reads.
type schema struct {
	Ref        string `yaml:"$ref"`
	Properties map[string]yaml.Node
	AllOf      []schema `yaml:"allOf"`
}

// namesSandbox reports whether a body has a field for the id of a sandbox.
func (s schema) namesSandbox(all map[string]schema) bool {
	if s.Ref != "" {
		s = all[s.Ref[strings.LastIndex(s.Ref, "/")+1:]]
	}
	for name := range s.Properties {
		if isSandbox(name) {
			return true
		}
	}
	return slices.ContainsFunc(s.AllOf, func(part schema) bool { return part.namesSandbox(all) })
}

func isSandbox(name string) bool {
	return slices.Contains([]string{"sandboxID", "sandboxIDs", "sandbox_id", "sandbox_ids"}, name)
}

// Every operation of both contracts that names a sandbox or a checkpoint is brought to its
// owner, or is one of those that say how they come to theirs.
func TestEveryOperationFindsItsNode(t *testing.T) {
	found, machines, named := 0, 0, map[string]bool{}
	for _, file := range []string{"e2b.yaml", "cay.yaml"} {
		text, err := os.ReadFile("../../../api/openapi/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var spec struct {
			Paths      map[string]map[string]yaml.Node
			Components struct{ Schemas map[string]schema }
		}
		if err := yaml.Unmarshal(text, &spec); err != nil {
			t.Fatal(err)
		}
		for path, methods := range spec.Paths {
			var shared []struct{ Name, In string }
			if of, ok := methods["parameters"]; ok {
				if err := of.Decode(&shared); err != nil {
					t.Fatalf("%s: %v", path, err)
				}
			}
			if slices.ContainsFunc(shared, func(p struct{ Name, In string }) bool { return p.Name == "nodeID" && p.In == "query" }) {
				if nodeIn(httptest.NewRequest("GET", path+"?nodeID=none", nil)) != "none" {
					t.Errorf("%s is about the machine of a node, which is not found", path)
				}
				machines++
			}
			for method, node := range methods {
				if method == "parameters" {
					continue
				}
				var op struct {
					OperationID string `yaml:"operationId"`
					Parameters  []struct{ Name, In string }
					RequestBody struct {
						Content map[string]struct{ Schema schema }
					} `yaml:"requestBody"`
				}
				if err := node.Decode(&op); err != nil {
					t.Fatalf("%s %s: %v", method, path, err)
				}
				beside := false
				for _, p := range op.Parameters {
					beside = beside || p.In == "query" && isSandbox(p.Name)
				}
				for _, body := range op.RequestBody.Content {
					beside = beside || body.Schema.namesSandbox(spec.Components.Schemas)
				}
				filled := strings.NewReplacer("{sandboxID}", "ione", "{checkpointID}", "ctwo").Replace(path)
				switch {
				case strings.Contains(path, "{sandboxID}"):
					if id, ok := inPath(filled); !ok || id != "ione" {
						t.Errorf("%s: no sandbox is found in %s", op.OperationID, path)
					}
					found++
				case strings.Contains(path, "{checkpointID}"):
					if id, ok := checkpointIn(filled); !ok || id != "ctwo" {
						t.Errorf("%s: no checkpoint is found in %s", op.OperationID, path)
					}
					found++
				case beside:
					if named[op.OperationID] = true; elsewhere[op.OperationID] == "" {
						t.Errorf("%s names a sandbox beside its path: which node is it for?", op.OperationID)
					}
				}
			}
		}
	}
	for id := range elsewhere {
		if !named[id] {
			t.Errorf("%s names no sandbox beside its path", id)
		}
	}
	if machines < len(machineRoutes) {
		t.Errorf("only %d routes about a machine were found", machines)
	}
	if found < 35 {
		t.Errorf("only %d operations about a sandbox were found", found)
	}
}
