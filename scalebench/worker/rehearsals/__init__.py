"""Steps and pipelines that ranks play without their models: real messages beside real work."""
