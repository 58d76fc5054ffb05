-- 0.1 % of the parts.
SELECT sum(l_extendedprice) AS total
FROM part, lineitem
WHERE p_brand = 'Brand#23'
    AND p_container = 'MED BOX'
    AND l_partkey = p_partkey
    AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
