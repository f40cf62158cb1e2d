package cay_test

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func TestLoginRules(t *testing.T) {
	for text, want := range map[string]cay.LoginRule{
		"group:platform -> team default as admin":      {Group: "platform", Team: "default", Role: cay.TeamAdmin},
		" group:my group:* ->  team a.b as viewer ":    {Group: "my group:*", Team: "a.b", Role: cay.Viewer},
		"email:*@Example.com -> team default as owner": {Email: "*@example.com", Team: "default", Role: cay.Owner},
		"group:platform":                                                      {},
		"group: -> team default as admin":                                     {},
		"group:platform -> team default as emperor":                           {},
		"name:platform -> team default as admin":                              {},
		"group:platform -> team default as admin; group:b -> team c as owner": {},
	} {
		got, err := cay.ParseLoginRule(text)
		if got != want || (err == nil) != (want != cay.LoginRule{}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	r := cay.LoginRule{Group: "eng-*"}
	if !r.For("", []string{"a", "eng-x"}) || r.For("", []string{"a", "xeng-"}) || r.For("eng-x", nil) {
		t.Error("groups")
	}
	r = cay.LoginRule{Email: "*@example.com"}
	if !r.For("A@Example.com", nil) || r.For("a@example.com.evil", nil) || r.For("a@notexample.com", nil) {
		t.Error("addresses")
	}
}

func TestMatches(t *testing.T) {
	for pattern, texts := range map[string]map[string]bool{
		"a":      {"a": true, "": false, "aa": false},
		"a*":     {"a": true, "ab/c": true, "ba": false},
		"*a":     {"a": true, "ba": true, "ab": false},
		"a*b*c":  {"abc": true, "axbxc": true, "acb": false, "ac": false, "abcc": true},
		"ab*ba":  {"aba": false, "abba": true, "abxba": true},
		"*":      {"": true, "x": true},
		"a**b":   {"ab": true, "axb": true, "a": false},
		"r:*:m*": {"r:x:main": true, "r:x": false},
	} {
		for text, want := range texts {
			if cay.Matches(pattern, text) != want {
				t.Errorf("%q and %q: %v", pattern, text, !want)
			}
		}
	}
}

func TestExchangeRules(t *testing.T) {
	good := cay.ExchangeRule{Issuer: "https://i", Audience: "cay", Claims: map[string]string{"repository": "a/*"}, Team: "t", Scopes: []string{"developer"}, Lifetime: time.Hour}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*cay.ExchangeRule){
		"no issuer":     func(r *cay.ExchangeRule) { r.Issuer = "" },
		"no audience":   func(r *cay.ExchangeRule) { r.Audience = "" },
		"no claims":     func(r *cay.ExchangeRule) { r.Claims = nil },
		"any claim":     func(r *cay.ExchangeRule) { r.Claims = map[string]string{"sub": "*"} },
		"no team":       func(r *cay.ExchangeRule) { r.Team = "" },
		"no scopes":     func(r *cay.ExchangeRule) { r.Scopes = nil },
		"unknown scope": func(r *cay.ExchangeRule) { r.Scopes = []string{"x"} },
		"too long":      func(r *cay.ExchangeRule) { r.Lifetime = 61 * time.Minute },
		"no time":       func(r *cay.ExchangeRule) { r.Lifetime = 0 },
	} {
		r := good
		change(&r)
		if r.Check() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
