// Package chart renders the Helm chart of deploy with Helm's own engine and holds what
// comes out to the types of Kubernetes' API. It is a module of its own, so that the
// server depends on neither.
package chart

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// objects are what a chart makes.
type objects struct {
	nodes   []apps.DaemonSet
	fronts  []apps.StatefulSet
	service []core.Service
	budgets []policy.PodDisruptionBudget
}

// render makes the objects of values, strictly: a field that the API does not have fails.
func render(t *testing.T, values map[string]any) (out objects, err error) {
	t.Helper()
	c, err := loader.Load("../../deploy/helm/cay")
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "cay", Namespace: "default"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return out, err
	}
	for name, text := range files {
		for part := range strings.SplitSeq(text, "\n---\n") {
			if strings.TrimSpace(part) == "" {
				continue
			}
			var kind struct{ Kind string }
			if err := yaml.Unmarshal([]byte(part), &kind); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, part)
			}
			switch kind.Kind {
			case "DaemonSet":
				out.nodes = add(t, out.nodes, part)
			case "StatefulSet":
				out.fronts = add(t, out.fronts, part)
			case "Service":
				out.service = add(t, out.service, part)
			case "PodDisruptionBudget":
				out.budgets = add(t, out.budgets, part)
			default:
				t.Errorf("%s has a %q", name, kind.Kind)
			}
		}
	}
	return out, nil
}

func add[T any](t *testing.T, list []T, text string) []T {
	t.Helper()
	var one T
	if err := yaml.UnmarshalStrict([]byte(text), &one); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return append(list, one)
}

// settings are those that the server knows, by its page.
func settings(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operate/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkPod holds a pod to what the server takes: a name that begins like a setting and
// is none has it refuse to start.
func checkPod(t *testing.T, what string, pod core.PodSpec) {
	t.Helper()
	known := settings(t)
	if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
		t.Errorf("%s: the variables of a Service named cay would look like settings", what)
	}
	volumes := map[string]bool{"data": true} // of a claim, in fronts
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "CAY_") && !strings.Contains(known, "`"+e.Name+"`") {
				t.Errorf("%s: %s is no setting", what, e.Name)
			}
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s: %s mounts %s, which is no volume", what, c.Name, m.Name)
			}
		}
		if c.Image != "registry.example/cay:1" {
			t.Errorf("%s: %s is of %q", what, c.Name, c.Image)
		}
	}
	if p := pod.Containers[0].ReadinessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Path != "/health" {
		t.Errorf("%s: it is ready by %+v", what, p)
	}
}

// finds reports whether a Service leads to pods with labels.
func finds(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func roles(pod core.PodSpec) string {
	for _, e := range pod.Containers[0].Env {
		if e.Name == "CAY_ROLES" {
			return e.Value
		}
	}
	return ""
}

func TestChart(t *testing.T) {
	usual := map[string]any{"image": "registry.example/cay:1", "settings": map[string]any{"CAY_BUCKET": "s3://a/b", "CAY_DOMAIN": "box.example.com"}}
	for _, tt := range []struct {
		name    string
		front   bool
		fronts  int
		service int // kinds of members that it leads to
	}{
		{"nodes that are fronts", true, 0, 1},
		{"and fronts", true, 2, 2},
		{"fronts of their own", false, 2, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := map[string]any{"node": map[string]any{"front": tt.front}, "front": map[string]any{"replicas": tt.fronts}}
			for k, v := range usual {
				values[k] = v
			}
			got, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.nodes) != 1 || len(got.service) != 1 || len(got.fronts) != min(tt.fronts, 1) || len(got.budgets) != min(tt.fronts, 1) {
				t.Fatalf("%d nodes, %d services, %d fronts, %d budgets", len(got.nodes), len(got.service), len(got.fronts), len(got.budgets))
			}
			node, led := got.nodes[0], 0
			checkPod(t, "node", node.Spec.Template.Spec)
			if want := map[bool]string{true: "front,node", false: "node"}[tt.front]; roles(node.Spec.Template.Spec) != want {
				t.Errorf("the roles of nodes are %q", roles(node.Spec.Template.Spec))
			}
			if node.Spec.UpdateStrategy.Type != apps.OnDeleteDaemonSetStrategyType || !node.Spec.Template.Spec.HostPID || !node.Spec.Template.Spec.HostNetwork {
				t.Errorf("sandboxes would not outlive the pod: %+v", node.Spec.UpdateStrategy)
			}
			if !finds(node.Spec.Selector.MatchLabels, node.Spec.Template.Labels) {
				t.Error("the DaemonSet does not find its pods")
			}
			if finds(got.service[0].Spec.Selector, node.Spec.Template.Labels) {
				led++
			}
			for _, front := range got.fronts {
				checkPod(t, "front", front.Spec.Template.Spec)
				if roles(front.Spec.Template.Spec) != "front" || int(*front.Spec.Replicas) != tt.fronts {
					t.Errorf("%d fronts with the roles %q", *front.Spec.Replicas, roles(front.Spec.Template.Spec))
				}
				if front.Spec.Template.Spec.Containers[0].SecurityContext != nil {
					t.Error("fronts have privileges")
				}
				if !finds(front.Spec.Selector.MatchLabels, front.Spec.Template.Labels) || finds(front.Spec.Selector.MatchLabels, node.Spec.Template.Labels) {
					t.Error("the StatefulSet does not find its pods alone")
				}
				if finds(got.service[0].Spec.Selector, front.Spec.Template.Labels) {
					led++
				}
			}
			if led != tt.service {
				t.Errorf("the Service leads to %d kinds of members", led)
			}
		})
	}
	if _, err := render(t, nil); err == nil || !strings.Contains(err.Error(), "image") {
		t.Errorf("without an image: %v", err)
	}
}

// TestValuesAreUsed fails for a value that no template reads.
func TestValuesAreUsed(t *testing.T) {
	var values map[string]any
	text, err := os.ReadFile("../../deploy/helm/cay/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	var templates strings.Builder
	files, err := os.ReadDir("../../deploy/helm/cay/templates")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile("../../deploy/helm/cay/templates/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		templates.Write(text)
	}
	group := regexp.MustCompile(`^(node|front|service)$`)
	for name, v := range values {
		names := []string{name}
		if inner, is := v.(map[string]any); is && group.MatchString(name) {
			names = nil
			for k := range inner {
				names = append(names, name+"."+k)
			}
		}
		for _, n := range names {
			if !strings.Contains(templates.String(), ".Values."+n) {
				t.Errorf("no template reads %s", n)
			}
		}
	}
}
