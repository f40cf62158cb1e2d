package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type modelCmd struct {
	Set    modelSetCmd    `cmd:"" help:"Make a provider of models, or replace one; its key stays outside sandboxes."`
	List   modelListCmd   `cmd:"" aliases:"ls" help:"List the team's providers, in the order in which they are asked."`
	Remove modelRemoveCmd `cmd:"" aliases:"rm" help:"Forget providers; their secrets stay."`
}

type modelSetCmd struct {
	Name    string            `arg:"" help:"The provider's name."`
	URL     string            `arg:"" help:"Its base URL, as its own SDK takes it, such as https://api.openai.com/v1 or https://api.anthropic.com."`
	Wire    string            `enum:"openai,anthropic" default:"openai" help:"The protocol that it speaks: openai or anthropic [openai]."`
	Secret  string            `help:"The secret with its key [the name with -key behind it, where --key-file is given]."`
	KeyFile string            `placeholder:"FILE" help:"A file with the key, which becomes the secret's value; - for standard input."`
	Model   map[string]string `short:"m" placeholder:"NAME=ITS-NAME" help:"A model that sandboxes may ask it for, and its own name for that; * is any other [all, by its names]."`
	Order   int               `help:"The lowest is asked first, the oldest of equal ones [0]."`
	Timeout time.Duration     `help:"How long it has until it begins to answer [1m for a stream, 10m for any other answer]."`
	Off     bool              `help:"Do not ask it."`
}

func (c *modelSetCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	key, err := webhookSecret(a, c.KeyFile)
	if err != nil {
		return err
	}
	if key != nil {
		c.Secret = or(c.Secret, c.Name+"-key")
		if err := api.PutSecret(a.ctx, c.Secret, *key); err != nil {
			return err
		}
	}
	on := !c.Off
	p, err := api.SetModelProvider(a.ctx, c.Name, client.ModelProvider{
		Wire: c.Wire, URL: c.URL, Secret: c.Secret, Models: c.Model, Order: c.Order, Timeout: int(c.Timeout.Seconds()), Enabled: &on,
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(p)
	}
	base := "http://" + cay.ModelHost
	if p.Wire == string(cay.OpenAIWire) {
		fmt.Fprintf(a.out, "inside a sandbox: OPENAI_BASE_URL=%s/v1 OPENAI_API_KEY=none\n", base)
	} else {
		fmt.Fprintf(a.out, "inside a sandbox: ANTHROPIC_BASE_URL=%s ANTHROPIC_API_KEY=none\n", base)
	}
	return nil
}

type modelListCmd struct{}

func (modelListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.ModelProviders(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"NAME", "STATE", "ORDER", "WIRE", "SECRET", "MODELS", "URL"}}
	for _, p := range list {
		state := "on"
		if p.Enabled != nil && !*p.Enabled {
			state = "off"
		}
		models := "all"
		if len(p.Models) > 0 {
			models = strings.Join(slices.Sorted(maps.Keys(p.Models)), " ")
		}
		t.add(clean(p.Name), state, strconv.Itoa(p.Order), clean(p.Wire), clean(or(p.Secret, "–")), clean(models), clean(p.URL))
	}
	t.print(a.out, width(a.out))
	return nil
}

type modelRemoveCmd struct {
	Names []string `arg:"" help:"Providers' names."`
}

func (c *modelRemoveCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	for _, name := range c.Names {
		if err := api.RemoveModelProvider(a.ctx, name); err != nil {
			return err
		}
	}
	return nil
}
