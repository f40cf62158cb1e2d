package cay_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func provider(change func(*cay.ModelProvider)) cay.ModelProvider {
	p := cay.ModelProvider{Name: "main", Wire: cay.OpenAIWire, URL: "https://api.example/v1"}
	if change != nil {
		change(&p)
	}
	return p
}

func TestModelProviderCheck(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*cay.ModelProvider)
		want   string // the field that is wrong; empty for none
	}{
		{"plain", nil, ""},
		{"all", func(p *cay.ModelProvider) {
			p.Wire, p.URL, p.Order, p.Timeout = cay.AnthropicWire, "http://10.0.0.7:8080", 1000, 15*time.Minute
			p.Models = map[string]string{"a": "", "b/ü:1": "c", cay.OtherModels: "d"}
		}, ""},
		{"no name", func(p *cay.ModelProvider) { p.Name = "" }, "name"},
		{"a path as name", func(p *cay.ModelProvider) { p.Name = "a/b" }, "name"},
		{"another wire", func(p *cay.ModelProvider) { p.Wire = "gemini" }, "wire"},
		{"order below", func(p *cay.ModelProvider) { p.Order = -1 }, "order"},
		{"order above", func(p *cay.ModelProvider) { p.Order = 1001 }, "order"},
		{"short time", func(p *cay.ModelProvider) { p.Timeout = time.Millisecond }, "timeout"},
		{"long time", func(p *cay.ModelProvider) { p.Timeout = time.Hour }, "timeout"},
		{"a model without a name", func(p *cay.ModelProvider) { p.Models = map[string]string{"": "x"} }, "models"},
		{"a model with a line", func(p *cay.ModelProvider) { p.Models = map[string]string{"x": "a\nb"} }, "models"},
		{"a long model", func(p *cay.ModelProvider) { p.Models = map[string]string{"x": strings.Repeat("a", 257)} }, "models"},
		{"no URL", func(p *cay.ModelProvider) { p.URL = "" }, "url"},
		{"another scheme", func(p *cay.ModelProvider) { p.URL = "ftp://a.example" }, "url"},
		{"a password", func(p *cay.ModelProvider) { p.URL = "https://u:p@a.example" }, "url"},
		{"a query", func(p *cay.ModelProvider) { p.URL = "https://a.example/v1?key=1" }, "url"},
		{"the route", func(p *cay.ModelProvider) { p.URL = "https://a.example/v1/chat/completions" }, "url"},
		{"a long URL", func(p *cay.ModelProvider) { p.URL = "https://a.example/" + strings.Repeat("a", 2048) }, "url"},
	} {
		err := provider(test.change).Check()
		if test.want == "" && err != nil || test.want != "" && (cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), test.want+":")) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestModelProviderServes(t *testing.T) {
	named := map[string]string{"a": "", "b": "theirs"}
	all := map[string]string{"a": "", cay.OtherModels: "big"}
	for _, test := range []struct {
		models map[string]string
		asked  string
		theirs string
		ok     bool
	}{
		{nil, "x", "x", true}, {named, "a", "a", true}, {named, "b", "theirs", true}, {named, "x", "x", false},
		{all, "a", "a", true}, {all, "x", "big", true}, {map[string]string{cay.OtherModels: ""}, "x", "x", true},
	} {
		p := provider(func(p *cay.ModelProvider) { p.Models = test.models })
		theirs, ok := p.Serves(test.asked)
		if ok != test.ok || ok && theirs != test.theirs {
			t.Errorf("%q of %v: %q, %v", test.asked, test.models, theirs, ok)
		}
	}
}
